"""Patches of a syntax tree, of which mutants are made."""

from __future__ import annotations

import ast

import pytest

from onefold.core.testing.proof.patching import Patch

SOURCE = """
def f(x):
    c = (  # a comment
        a(x)
        or b
    )
    if x > 1:

        one()  # another
        two()
    try:
        one(x)
    except KeyError:
        three()
    match x:
        case 1:
            four()
        case 2:
            one(x)
    return c
"""


def lines(tree: ast.AST) -> list[str]:
    return [line.strip() for line in ast.unparse(tree).splitlines()]


@pytest.mark.parametrize(
    ("old", "new", "there", "here"),
    [
        ("a(x) or b", "b", ["c = a(x) or b"], ["c = b"]),
        ("... or b", "...", ["c = a(x) or b"], ["c = a(x)"]),
        ("c = ...", "", ["c = a(x) or b"], []),
        ("c = ...\nif x > 1: ...", "d = ...\nif x > 1: ...", ["c = a(x) or b"], ["d = a(x) or b"]),
        ("if x > 1: ...", "if x > 2: ...", ["if x > 1:"], ["if x > 2:"]),
        ("if x > 1: ...", "...", ["if x > 1:"], []),
        ("if x > 1:\n    one()\n    ...", "if x > 1: ...", ["one()"], []),
        ("try: ...\nexcept KeyError: ...", "try: ...\nexcept E:\n    ...", ["except KeyError:"], ["except E:"]),
        ("match ...:\n    case 1: ...", "match ...:\n    case 1 | 3: ...", ["case 1:"], ["case 1 | 3:"]),
        ("four()", "return", ["four()"], ["return"]),
    ],
)
def test_a_patch_finds_its_place_however_the_source_is_laid_out(
    old: str, new: str, there: list[str], here: list[str]
) -> None:
    tree = ast.parse(SOURCE)
    before = lines(tree)
    Patch("m", old, new).apply(tree)
    after = lines(tree)
    assert sorted([*before, *here]) == sorted([*after, *there])
    compile(ast.fix_missing_locations(tree), "m", "exec")


@pytest.mark.parametrize("old", ["x", "one(x)", "a(y)", "if x > 1:\n    two()\n    ...", "if x > 1:\n    one()"])
def test_what_is_nowhere_or_in_several_places_is_refused(old: str) -> None:
    with pytest.raises(ValueError, match="not once"):
        Patch("m", old, "1").apply(ast.parse(SOURCE))
