"""Every Python block of README and docs compiles, imports what there is, and calls onefold as it can be called.

Blocks that show a file of docs/examples are that file, and run: the sinks in `core/tests/test_conformance_sink.py`,
README's in `integration-tests/pipeline/test_first_script.py`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onefold import core, flow, pipeline, sinks, sources, spark
from onefold.clients.hbase import HBaseSettings
from onefold.clients.option_texts import option_fields
from onefold.sinks.hbase.sink_options import HBaseSinkConfig
from onefold.sinks.kafka.sink_options import KafkaSinkConfig
from onefold.sinks.postgres.sink_options import PostgresSinkConfig
from onefold.sinks.staged.table_options import SqlSinkConfig

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"<!-- docs/examples/(\w+\.py) -->\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
KNOWN = {name: getattr(face, name) for face in (core, flow, pipeline, sinks, sources, spark) for name in face.__all__}
# Of Spark's formats: the models of their options, and the options that say what one query or one run is.
RUN = {"pipeline", "run", "store", "patienceS"}
START = {"endingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"}
FORMATS: dict[str, tuple[tuple[type, ...], set[str]]] = {
    "onefold_kafka": ((sources.KafkaSource, KafkaSinkConfig), START | RUN),
    "onefold_hbase": ((sources.HBaseSource, HBaseSettings, HBaseSinkConfig), RUN),
    "onefold_postgres": ((sources.PostgresSource, PostgresSinkConfig), RUN),
    "onefold_sql": ((SqlSinkConfig,), RUN),
}


def blocks() -> Iterator[Any]:
    for page in PAGES:
        text = page.read_text()
        for found in BLOCK.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            yield pytest.param(found[1], id=f"{page.relative_to(ROOT)}:{line}")


def is_open(node: ast.expr) -> bool:
    """`...`, which stands for more, or what only a run can tell."""
    return isinstance(node, ast.Starred) or (isinstance(node, ast.Constant) and node.value is ...)


def check_call(call: ast.Call, called: Any, label: str) -> None:
    positional = [node for node in call.args if not is_open(node)]
    named = {keyword.arg: None for keyword in call.keywords if keyword.arg is not None}
    signature = inspect.signature(called)
    is_whole = len(positional) == len(call.args) and len(named) == len(call.keywords)
    try:
        (signature.bind if is_whole else signature.bind_partial)(*positional, **named)
    except TypeError as error:
        raise AssertionError(f"{label}: {error}") from None


def imported(tree: ast.Module) -> dict[str, Any]:
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module != "__future__":
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"
                found[alias.asname or alias.name] = getattr(module, alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)
    return found


@pytest.mark.parametrize("block", list(blocks()))
def test_a_block_compiles_and_imports_and_calls_what_there_is(block: str) -> None:
    tree = ast.parse(block)
    compile(tree, "block", "exec")
    there = {**KNOWN, **imported(tree)}
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        match call.func:
            case ast.Name(id=name) if name in there and name not in own:
                if getattr(there[name], "__module__", "").startswith("onefold."):
                    check_call(call, there[name], name)
            case ast.Attribute(value=ast.Name(id="pipeline"), attr=method):
                check_call(call, inspect.getattr_static(pipeline.Pipeline, method).__get__(object()), method)


@pytest.mark.parametrize("block", list(blocks()))
def test_a_source_or_sink_that_a_block_makes_of_constants_can_be_made(block: str) -> None:
    tree = ast.parse(block)
    there = {**KNOWN, **imported(tree)}
    makers = {*sources.__all__, *sinks.__all__, "HBaseSettings"} & there.keys()
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in makers:
            names = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
            if names <= there.keys() and not any(
                is_open(node) for node in ast.walk(call) if isinstance(node, ast.expr)
            ):
                eval(compile(ast.Expression(call), "block", "eval"), there)


@pytest.mark.parametrize("block", list(blocks()))
def test_options_of_a_format_are_options_that_it_has(block: str) -> None:
    formats = [name for name in FORMATS if f'"{name}"' in block and f'format("{name}")' in block]
    known = set[str]()
    for name in formats:
        models, more = FORMATS[name]
        known |= {option.lower() for option in (*option_fields(*models), *more)}
    prefixes = tuple(option for option in known if option.endswith("."))
    for call in (node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Call) and formats):
        match call.func, call.args:
            case ast.Attribute(attr="option"), [ast.Constant(value=str(name)), *_]:
                given = [name]
            case ast.Attribute(attr="options"), _:
                given = [keyword.arg for keyword in call.keywords if keyword.arg]
            case _:
                continue
        unknown = [name for name in given if name.lower() not in known and not name.lower().startswith(prefixes)]
        assert [name for name in unknown if name != "checkpointLocation"] == []


@pytest.mark.docs
@pytest.mark.parametrize("page", [page for page in PAGES if "<!-- docs/examples/" in page.read_text()], ids=str)
def test_a_page_shows_the_examples_as_they_are(page: Path) -> None:
    def shown(found: re.Match[str]) -> str:
        text = (ROOT / "docs/examples" / found[1]).read_text()
        return f"<!-- docs/examples/{found[1]} -->\n```python\n{text}```"

    renewed = SHOWN.sub(shown, page.read_text())
    if os.environ.get("ONEFOLD_RENEW_DOCS"):
        page.write_text(renewed)
    assert page.read_text() == renewed, f"{page.name} shows an older example: run `make docs`"
