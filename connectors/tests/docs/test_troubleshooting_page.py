"""docs/troubleshooting.md: each code that it names is one, under its exit code; those that operators meet are there."""

from __future__ import annotations

import re
from pathlib import Path

from onefold.core import errors

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
SECTION = re.compile(r"^## (?:(\d+)|\w+).*?$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^\| (`[a-z0-9-]+`(?:, `[a-z0-9-]+`)*) \|", re.MULTILINE)
LEAST = 100


def exit_codes() -> dict[str, str]:
    """Each code of docs/errors.md, which a test writes from the code, with its exit code."""
    found, exit_code = {}, ""
    for line in (DOCS / "errors.md").read_text().splitlines():
        if heading := re.match(r"## \w+, exit code (\d+)", line):
            exit_code = heading[1]
        elif row := re.match(r"\| `([a-z0-9-]+)` \|", line):
            found[row[1]] = exit_code
    return found


def named() -> dict[str, str]:
    """Each code of the page, with the exit code under which it stands."""
    text = (DOCS / "troubleshooting.md").read_text()
    return {
        code: number
        for number, rows in SECTION.findall(text)
        if number
        for cell in CODE.findall(rows)
        for code in re.findall(r"`([a-z0-9-]+)`", cell)
    }


def test_each_code_of_the_page_is_one_and_stands_under_its_exit_code() -> None:
    there = exit_codes()
    assert {code: number for code, number in named().items() if there.get(code) != number} == {}


def test_the_page_has_the_codes_that_stop_a_pipeline_which_ran_before() -> None:
    there = exit_codes()
    assert {code for code, number in there.items() if number in ("73", "76", "77", "78")} - named().keys() == set()
    assert len(named()) > LEAST


def test_readme_says_which_exit_code_an_error_has() -> None:
    shown = dict(re.findall(r"^\| (\d+) \| (`.+?`) \|", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert {name: number for number, names in shown.items() for name in re.findall(r"`(\w+)`", names)}.items() <= {
        name: str(kind.exit_code) for name, kind in vars(errors).items() if isinstance(kind, type)
    }.items()
    others = {str(kind.exit_code) for kind in (errors.OnefoldError, errors.Retriable)}
    unit = re.findall(r"^RestartPreventExitStatus=(.+)$", (DOCS / "deploying.md").read_text(), re.MULTILINE)
    assert {*unit[0].split()} == {*exit_codes().values()} - others == shown.keys() - others
