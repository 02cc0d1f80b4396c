"""Values of command line options: secrets come from the environment or a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.errors import raises
from typer.testing import CliRunner

from onefold.cli.console import resolved
from onefold.cli.main import app
from onefold.core import ConfigError


def test_variables_and_files_stand_for_what_they_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORD", "a$b${c}")
    (tmp_path / "word").write_text("from a file\n")
    assert resolved("postgresql://u:${WORD}@h/d") == "postgresql://u:a$b${c}@h/d"
    assert resolved("costs $5 {x}") == "costs $5 {x}"
    assert resolved(f"postgresql://u:${{file:{tmp_path}/word}}@h/d") == "postgresql://u:from a file@h/d"
    assert resolved("@word") == "@word"
    assert resolved(None) is None


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("postgresql://u:${HUNTER_NOT_SET}@h/d", "environment-variable-missing"),
        ("${file:/nowhere}", "file-unreadable"),
    ],
)
def test_a_secret_that_is_not_there_is_refused(value: str, code: str) -> None:
    with raises(ConfigError, code):
        resolved(value)


@pytest.mark.parametrize("command", ["list", "resolve", "prune"])
@pytest.mark.parametrize("option", ["--postgres", "--store"])
def test_every_command_takes_its_urls_so(command: str, option: str) -> None:
    other = {"--store": "--postgres=postgresql://h/d", "--postgres": "--store=sqlite://"}[option]
    asked = CliRunner().invoke(app, ["txn", command, other, f"{option}=${{HUNTER_NOT_SET}}"])
    assert isinstance(asked.exception, ConfigError)
    assert "HUNTER_NOT_SET" in str(asked.exception)


@pytest.mark.parametrize("command", ["list", "resolve", "prune"])
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], "option-missing"),
        (["orders.toml", "--postgres=postgresql://h/d"], "option-missing"),
        (["orders.toml", "--store=sqlite://"], "options-conflict"),
        (["orders.toml", "--ledger=books"], "options-conflict"),
    ],
)
def test_a_command_acts_on_a_pipeline_or_on_a_database(command: str, arguments: list[str], code: str) -> None:
    asked = CliRunner().invoke(app, ["txn", command, *arguments])
    assert isinstance(asked.exception, ConfigError)
    assert asked.exception.code == code
