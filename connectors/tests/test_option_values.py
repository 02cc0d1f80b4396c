"""Secrets come to the command line from the environment or a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.cli.option_values import resolved, settings_of
from onefold.core import ConfigError


def test_variables_and_files_stand_for_what_they_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORD", "a$b${c}")
    (tmp_path / "word").write_text("from a file\n")
    assert resolved("postgresql://u:${WORD}@h/d") == "postgresql://u:a$b${c}@h/d"
    assert resolved("costs $5 {x}") == "costs $5 {x}"
    given = ["sasl.password=${WORD}", f"ssl.key.password=@{tmp_path}/word", "client.id=u=v ", "ssl.key.pem="]
    settings = {"sasl.password": "a$b${c}", "ssl.key.password": "from a file", "client.id": "u=v ", "ssl.key.pem": ""}
    assert settings_of(given) == settings


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("sasl.password=hunter2", r"--setting 'sasl.password=\$\{NAME\}', or a file"),
        ("sasl.oauthbearer.client.secret=hunter2", "is a secret"),
        ("ssl.keystore.password=hunter2", "is a secret"),
        ("ssl.key.pem=hunter2", "is a secret"),
        ("sasl.password:hunter2", "one has no '='"),
        ("sasl.password=${HUNTER_NOT_SET}", "export HUNTER_NOT_SET"),
        ("sasl.password=@/nowhere", "@/nowhere names a file, and it cannot be read: No such file"),
    ],
)
def test_a_secret_that_is_written_out_is_refused_and_not_repeated(setting: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        settings_of([setting])
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "command",
    [
        ["doctor", "--pipeline=p", "--table=t"],
        ["verify", "--pipeline=p", "--topic=t", "--bootstrap-servers=h:1", "--schema=id long", "--table=t", "--key=id"],
        ["txn", "list"],
        ["txn", "resolve"],
        ["txn", "prune"],
    ],
)
@pytest.mark.parametrize("option", ["--postgres", "--store"])
def test_every_command_takes_its_urls_so(command: list[str], option: str) -> None:
    other = {"--store": "--postgres=postgresql://h/d", "--postgres": "--store=sqlite://"}[option]
    asked = CliRunner().invoke(app, [*command, other, f"{option}=${{HUNTER_NOT_SET}}"])
    assert isinstance(asked.exception, ConfigError)
    assert "HUNTER_NOT_SET" in str(asked.exception)
