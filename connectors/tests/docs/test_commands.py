"""Every `onefold ...` command of README and docs names a command that there is, with options that it has."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from onefold.cli.main import app

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(onefold [a-z][^`]*)`")


def commands() -> list[str]:
    found = set[str]()
    for page in PAGES:
        text = page.read_text()
        blocks = "\n".join(BLOCK.findall(text)).replace("\\\n", " ")
        found |= {line for line in blocks.splitlines() if line.startswith("onefold ")}
        found |= {" ".join(command.split()) for command in INLINE.findall(BLOCK.sub("", text))}
    return sorted(found)


@pytest.mark.parametrize("line", commands())
def test_a_command_and_its_options_are_there(line: str) -> None:
    command, words = get_command(app), shlex.split(line, comments=True)[1:]
    while isinstance(command, TyperGroup) and words:
        name = words.pop(0)
        assert name in command.commands, f"onefold has no command {name!r}"
        command = command.commands[name]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert given - known - {"--help"} == set()


def test_nobody_is_told_to_install_a_name_of_an_index_that_is_not_ours_yet() -> None:
    texts = [*PAGES, ROOT / "CHANGELOG.md", *ROOT.glob("*/onefold/**/*.py")]
    named = re.compile(r"pip3? install[^`\n]*\bonefold\b")
    assert [f"{path}: {found[0]}" for path in texts for found in named.finditer(path.read_text())] == []
