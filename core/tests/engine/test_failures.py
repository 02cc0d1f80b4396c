"""What a flow says of an error that a function of the user's has raised."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.core.errors import BadRecord, Terminal
from onefold.engine.dataflow.chain_operators import Operators, operator_failed
from onefold.engine.dataflow.chains import plan
from onefold.engine.driver.restarts import WorkerFailed, judged
from onefold.engine.logics.logic_factory import make_logic
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.storage import Storage
from onefold.flow import ProcessorHandle, StatefulProcessor, TimerValues
from onefold.flow.graph.nodes import Edge, Graph, Node, Shipping
from onefold.flow.graph.operators import FlatMapping, MappingBatches, Operator, Processing, Reading, Reducing, Writing

ROWS = pa.schema({"key": pa.string(), "n": pa.int64()})
BATCH = pa.RecordBatch.from_pylist([{"key": "a", "n": 1}, {"key": "a", "n": 0}], ROWS)


def divided(n: int) -> int:
    return 1 // n  # the line


LINE = f"{__file__}:{divided.__code__.co_firstlineno + 1} in divided"


class Dividing(StatefulProcessor):
    def init(self, handle: ProcessorHandle) -> None:
        del handle

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterable[Any]:
        del timerValues
        for row in rows:
            yield *key, divided(row.n)


def batches(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(1, "n", pa.array([divided(n) for n in batch.column("n").to_pylist()]))


OPERATORS: dict[str, tuple[Operator, str]] = {
    "flat_map": (
        FlatMapping(lambda row: [{"key": row["key"], "n": divided(row["n"])}]),
        ", of the row {'key': 'a', 'n': 0}: ",
    ),
    "map_batches": (MappingBatches(batches), ": "),
    "process": (Processing(Dividing(), ("key",), ()), ", of the key ('a',): "),
    "reduce": (
        Reducing(lambda kept, row: {**kept, "n": divided(row["n"])}, ("key",)),
        ", of the key ('a',): ",
    ),
}


def operators_of(operator: Operator, folder: Path, schema: pa.Schema = ROWS) -> Operators:
    """Those of a chain of one operator, whose uid is `mine`."""
    source: Any = Reading("a source")  # type: ignore[arg-type]
    sink: Any = Writing(None)  # type: ignore[arg-type]
    nodes = (
        Node(0, source, (), ROWS, (), "orders"),
        Node(1, operator, (Edge(0, Shipping.KEYED, ("key",)),), schema, (), "mine"),
        Node(2, sink, (Edge(1),), None, (), "table"),
    )
    graph = Graph("shop", nodes)
    chain = plan(graph, sinks_apart=True).chains[1]
    backend = MemoryBackend(Storage(str(folder), "shop"), 1)
    return Operators(chain, {1: make_logic(graph, nodes[1], {}, backend, 0, 1)})


@pytest.mark.parametrize("name", OPERATORS)
def test_an_error_names_operator_line_and_key_or_row(tmp_path: Path, name: str) -> None:
    operator, of = OPERATORS[name]
    with pytest.raises(Terminal) as failed:
        list(operators_of(operator, tmp_path).take(BATCH, 0))
    assert failed.value.code == "operator-failed"
    assert failed.value.message.startswith(f"a function of mine has raised ZeroDivisionError at {LINE}{of}integer div")
    assert isinstance(failed.value.__cause__, ZeroDivisionError)


def test_a_function_of_a_package_is_named_by_its_own_first_line(tmp_path: Path) -> None:
    operators = operators_of(FlatMapping(lambda row: json.loads(row["key"])), tmp_path)
    with raises(Terminal, "operator-failed", f"{__file__}"):
        list(operators.take(BATCH, 0))
    with raises(Terminal, "operator-failed"):
        list(operators_of(MappingBatches(json.loads), tmp_path).take(BATCH, 0))


def test_a_function_that_exits_is_named(tmp_path: Path) -> None:
    def leave(row: dict[str, Any]) -> Any:
        raise SystemExit(row["n"])

    with raises(Terminal, "operator-failed"):
        list(operators_of(FlatMapping(leave), tmp_path).take(BATCH, 0))


@pytest.mark.parametrize(
    "error", [BadRecord("record-unreadable", "o/0"), MemoryError(), OSError(28, "full"), ModuleNotFoundError("x")]
)
def test_errors_that_say_themselves_what_is_wrong_stay_as_they_are(error: BaseException) -> None:
    assert operator_failed("mine", error) is error


def test_a_function_that_has_raised_is_tried_again_by_the_restarts() -> None:
    assert isinstance(judged(Terminal("operator-failed", "a function")), WorkerFailed)


def test_an_error_further_down_the_chain_is_that_operators(tmp_path: Path) -> None:
    operators = operators_of(FlatMapping(lambda row: [row]), tmp_path)
    found = operators.take(BATCH, 0)
    assert next(found)[2].num_rows == 2
    with pytest.raises(ValueError, match="of the sink"):
        found.throw(ValueError("of the sink"))  # type: ignore[attr-defined]
