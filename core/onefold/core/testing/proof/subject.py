"""What a simulation is about: the production protocol and the models around it, as they are or with a mistake in them.

The modules are loaded from their own source files. Loading can put a counter at the head of every branch, so that a
proof can say what it never reached, and can patch the tree first, which makes a mutant.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from onefold.core.checks import present
from onefold.core.contract import SinkKind
from onefold.core.positions import Positions
from onefold.core.testing.proof.patching import Patch
from onefold.core.testing.simulator.models import ModelSink
from onefold.store.job.offset_json import parse_offsets

OFFSET_LOG = "onefold.store.job.offset_log"
MODULES = (
    "onefold.core.protocol.binding",
    "onefold.core.protocol.recovery",
    "onefold.core.protocol.epoch",
    "onefold.core.protocol.moving",
    OFFSET_LOG,
    "onefold.store.job.lifecycle",
    "onefold.store.job.query",
    "onefold.core.testing.simulator.models",
    "onefold.core.testing.simulator.model_store",
)
# What reads the checkpoint is simulated too; its refusals of files that nobody writes are unit-tested.
COUNTED = frozenset(MODULES[:7]) - {OFFSET_LOG}
COUNTER = "__reached__"


@dataclass(frozen=True, slots=True)
class Branch:
    """The head of a block of code: where it is, and its first line."""

    module: str
    line: int
    function: str
    text: str

    def __str__(self) -> str:
        return f"{self.module.rpartition('.')[2]}.py:{self.line} in {self.function}: {self.text}"


@dataclass(frozen=True)
class Subject:
    """Modules to be simulated, and how often each of their branches was reached."""

    protocol: Any
    query: Any
    models: Mapping[SinkKind, type[ModelSink]]
    store: Any
    modules: Mapping[str, ModuleType]
    branches: tuple[Branch, ...] = ()
    counts: list[int] = field(default_factory=list)


def load(*patches: Patch, counted: bool = False) -> Subject:
    """The modules from their sources, patched. Raises ValueError where what a patch changes is not there once."""
    branches: list[Branch] = []
    counts: list[int] = []
    loaded: dict[str, ModuleType] = {}
    originals = {name: sys.modules.get(name) for name in MODULES}
    try:
        for name in MODULES:
            tree = _parse(name, [p for p in patches if p.module == name])
            if counted and name in COUNTED:
                tree = _Counting(name, branches, counts).visit(tree)
            loaded[name] = sys.modules[name] = _execute(name, ast.fix_missing_locations(tree), counts)
    finally:
        for name, module in originals.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
    vars(loaded[OFFSET_LOG])["parse_offsets"] = _parsed
    protocol, query, models, model_store = (loaded[name] for name in (MODULES[2], *MODULES[6:]))
    return Subject(protocol, query, models.MODELS, model_store.ModelStore, loaded, tuple(branches), counts)


def _parsed(texts: Iterable[str | None]) -> Positions:
    """What `parse_offsets` gives, once for each text: schedules have the same few."""
    return _parsed_once(tuple(texts))


@cache
def _parsed_once(texts: tuple[str | None, ...]) -> Positions:
    return parse_offsets(texts)


def _parse(name: str, patches: list[Patch]) -> ast.Module:
    spec = importlib.util.find_spec(name)
    origin = present(present(spec, name).origin, name)
    tree = ast.parse(Path(origin).read_text(), filename=origin)
    for patch in patches:
        patch.apply(tree)
    return tree


def _execute(name: str, tree: ast.Module, counts: list[int]) -> ModuleType:
    module = ModuleType(name)
    module.__dict__[COUNTER] = counts
    # The dataclass decorator looks its module up by name: the caller keeps it there while this runs.
    sys.modules[name] = module
    exec(compile(tree, f"<{name}>", "exec"), module.__dict__)  # our own source
    return module


class _Counting(ast.NodeTransformer):
    """Puts a counter at the head of every block: functions, both sides of an if, handlers, cases, loops."""

    def __init__(self, module: str, branches: list[Branch], counts: list[int]) -> None:
        self.module, self.branches, self.counts = module, branches, counts
        self.function = "-"

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        outer, self.function = self.function, node.name
        self.generic_visit(node)
        self._count(node.body)
        self.function = outer
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        if self.function != "-":
            self._count(node.body)
            if node.orelse and not isinstance(node.orelse[0], ast.If):
                self._count(node.orelse)
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        self.generic_visit(node)
        self._count(node.body)
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        self.generic_visit(node)
        self._count(node.body)
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        self._count(node.body)
        return node

    def _count(self, body: list[ast.stmt]) -> None:
        first = body[0]
        is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and len(body) > 1
        at = int(is_docstring)
        text = ast.unparse(body[at]).splitlines()[0][:90]
        self.branches.append(Branch(self.module, body[at].lineno, self.function, text))
        self.counts.append(0)
        count = ast.Subscript(ast.Name(COUNTER, ast.Load()), ast.Constant(len(self.counts) - 1), ast.Store())
        body.insert(at, ast.copy_location(ast.AugAssign(count, ast.Add(), ast.Constant(1)), body[at]))
