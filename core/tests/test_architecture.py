"""The shape of the code: who may import whom, what is public, and that the drawn error tree is the real one."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import onefold.core
import onefold.core.testing
import onefold.flow
from onefold.core import errors

ROOT = Path(__file__).parents[2]
FOREIGN = {"pyspark", "confluent_kafka", "psycopg", "sqlalchemy", "pgpq", "thriftpy2", "happybase", "py4j"}
MAY_IMPORT = {
    "core/onefold/core": {"core"},
    "clients/onefold/clients": {"core", "clients"},
    "core/onefold/store": {"core", "clients", "store"},
    "core/onefold/flow": {"core", "clients", "store", "flow"},
    "core/onefold/engine": {"core", "clients", "store", "flow", "engine"},
    "sources/onefold/sources": {"core", "clients", "sources"},
    "sinks/onefold/sinks": {"core", "clients", "sinks"},
}


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "onefold" else set()
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_dependencies_point_one_way(folder: str) -> None:
    modules = list((ROOT / folder).rglob("*.py"))
    assert modules
    for path in modules:
        portions = {name.split(".")[1] for name in _imports(path) if name.startswith("onefold.")}
        for_tests = {"store"} if "testing" in path.parts else set()  # the kits have a real store
        assert portions <= MAY_IMPORT[folder] | for_tests, path


def test_core_imports_no_server_and_no_spark() -> None:
    modules = list((ROOT / "core/onefold").rglob("*.py"))
    assert len(modules) > 10
    for path in modules:
        assert not {name.split(".")[0] for name in _imports(path)} & FOREIGN, path


def test_one_place_sleeps() -> None:
    """Retries and looks wait in onefold.core.waiting; servers and processes on this machine are polled by others."""
    folders = (*MAY_IMPORT, "connectors/onefold/spark")
    modules = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    sleepers = {path.name for path in modules if re.search(r"\bsleep\(", path.read_text())}
    assert sleepers == {"waiting.py"}


def test_no_portion_has_an_init_in_the_shared_namespace() -> None:
    for portion in ("core", "clients", "sources", "sinks", "connectors"):
        assert not (ROOT / portion / "onefold/__init__.py").exists()


@pytest.mark.parametrize("module", [onefold.core, onefold.core.testing, onefold.flow], ids=lambda m: m.__name__)
def test_the_public_names_are_complete_and_sorted(module: ModuleType) -> None:
    listed: list[str] = module.__all__
    constants = sorted(name for name in listed if name.isupper())
    classes = sorted(name for name in listed if name[0].isupper() and not name.isupper())
    functions = sorted(name for name in listed if name[0].islower())
    assert listed == [*constants, *classes, *functions]
    defined = {name for name, value in vars(module).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert defined == set(listed)


def test_all_that_the_contract_positions_and_errors_make_public_is_in_core() -> None:
    from onefold.core import contract, positions

    inner = {*_made_in(contract), *positions.__all__, *_made_in(errors)} - {"exit_code", "kind_of", "named"}
    assert inner == set(onefold.core.__all__)


def _made_in(module: ModuleType) -> set[str]:
    """The names that others may import of it."""
    found = {name: value for name, value in vars(module).items() if name[0] != "_" and not inspect.ismodule(value)}
    return {name for name, value in found.items() if getattr(value, "__module__", module.__name__) == module.__name__}


def test_the_drawn_error_tree_is_the_real_one() -> None:
    drawn: dict[str, str | None] = {}
    parents: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        name = line.lstrip(" │├└─").split(" ")[0]
        if not line.startswith("    ") or not name.isidentifier():
            continue
        depth = (len(line) - len(line.lstrip(" │├└─")) - 4) // 4
        parents[depth:] = [name]
        drawn[name] = parents[depth - 1] if depth else None
    real = {
        name: value.__base__.__name__ if value is not errors.OnefoldError else None
        for name, value in vars(errors).items()
        if inspect.isclass(value)
    }
    assert drawn == real


def test_only_fenced_has_its_exit_code() -> None:
    assert errors.exit_code(errors.Fenced("taken-over", "x")) == 73
    others = [e for e in vars(errors).values() if inspect.isclass(e) and e is not errors.Fenced]
    assert errors.Fenced.exit_code not in {e.exit_code for e in others}
    assert errors.exit_code(ValueError("x")) == 1
