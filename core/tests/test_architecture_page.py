"""The picture of docs/architecture.md: which folder imports which, drawn from the code. And that it has no circle."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from harness.renewing import assert_renewed

pytestmark = pytest.mark.xdist_group("architecture_page")  # each process reads all modules once

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/architecture.md"
PORTIONS = ("connectors", "sinks", "sources", "clients", "core")
WHOLE = {"cli", "trials", "local"}  # drawn as one folder each
ROOTS = {"onefold.cli.entry": "onefold", "onefold.cli.main": "onefold"}  # the command itself, which knows all others

Graph = dict[str, set[str]]


def modules(*, with_tests: bool = False) -> dict[str, Path]:
    """Every module by its name, without packages' own faces, and without what is for tests unless asked for."""
    found = {}
    for portion in PORTIONS:
        for path in (ROOT / portion / "onefold").rglob("*.py"):
            if path.name not in ("__init__.py", "__main__.py") and (with_tests or "testing" not in path.parts):
                found[".".join(path.relative_to(ROOT / portion).with_suffix("").parts)] = path
    return found


def folder(module: str) -> str:
    _, top, *rest = module.split(".")
    if module in ROOTS:
        return ROOTS[module]
    return top if top in WHOLE or len(rest) < 2 else f"{top}.{rest[0]}"


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            named = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name for name in (*named, node.module) if name in known}
    return found


def folders() -> Graph:
    """Each folder, and those whose modules its own modules import."""
    known, graph = modules(), defaultdict[str, set[str]](set)
    for name, path in known.items():
        graph[folder(name)] |= {folder(other) for other in imports(path, known)} - {folder(name)}
    return dict(graph)


def reduced(graph: Graph) -> Graph:
    """Without the arrows that a way over other folders stands for."""

    def below(start: str) -> set[str]:
        return set().union(*({other} | below(other) for other in graph[start]))

    return {name: {o for o in others if all(o not in below(x) for x in others)} for name, others in graph.items()}


def drawn(graph: Graph) -> str:
    ids = {name: name.replace(".", "_") for name in graph}
    lines = ["```mermaid", "flowchart TD"]
    by_top = defaultdict[str, list[str]](list)
    for name in sorted(graph):
        by_top[name.partition(".")[0]].append(name)
    for top, names in by_top.items():
        nodes = [f"  {ids[name]}[{name}]" for name in names]
        lines += nodes if len(nodes) == 1 else [f"  subgraph in_{top} [{top}]", *(f"  {n}" for n in nodes), "  end"]
    lines += [f"  {ids[name]} --> {ids[other]}" for name in sorted(graph) for other in sorted(graph[name])]
    return "\n".join([*lines, "```"])


def test_no_module_is_imported_by_one_that_it_imports_not_even_late_or_for_its_types() -> None:
    known = modules(with_tests=True)
    TopologicalSorter({name: imports(path, known) - {name} for name, path in known.items()}).prepare()


def test_no_folder_is_imported_by_one_that_it_imports() -> None:
    TopologicalSorter(folders()).prepare()  # raises CycleError, which names the circle


@pytest.mark.docs
def test_the_page_shows_the_folders_as_they_import_each_other() -> None:
    assert_renewed(PAGE, "test_architecture_page.py", drawn(reduced(folders())))


def test_every_file_and_folder_that_the_page_names_is_there() -> None:
    named = re.findall(r"`((?:core|clients|sources|sinks|connectors)/onefold/[^`]+)`", PAGE.read_text())
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []
