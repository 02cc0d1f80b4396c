"""Where a chain of operators is, for its driver to see."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa

from onefold.engine.dataflow.chain_operators import Operators
from onefold.engine.dataflow.chains import Chain
from onefold.engine.dataflow.progress_marks import NODE, STREAMS
from onefold.flow.graph.nodes import Edge, Node
from onefold.flow.graph.operators import MappingBatches

ROWS = pa.schema({"n": pa.int64()})
BATCH = pa.record_batch([[1]], schema=ROWS)


class Noting:
    """A logic that gives its batch twice, and notes what the mark says whenever its code runs."""

    def __init__(self, mark: list[int], noted: list[int]) -> None:
        self.mark, self.noted = mark, noted

    def take(self, batch: Any, port: int) -> Iterator[Any]:
        del port
        for _ in range(2):
            self.noted.append(self.mark[NODE] - 1)
            yield None, batch
        self.noted.append(self.mark[NODE] - 1)

    def flush(self, task: Any) -> Iterator[Any]:
        yield from self.take(BATCH, task)


def test_the_mark_names_the_node_whose_code_runs_also_after_those_that_it_fed() -> None:
    function = MappingBatches(cast(Any, None))
    nodes = Node(3, function, (), ROWS), Node(4, function, (Edge(3),), ROWS), Node(5, function, (Edge(4),), ROWS)
    mark, noted = [0] * 8, {number: list[int]() for number in (3, 4, 5)}
    logics = {number: Noting(mark, of) for number, of in noted.items()}
    operators = Operators(Chain(0, nodes, (), ()), cast(Any, logics), mark)
    assert len(list(operators.take(BATCH, 0))) == 2 + 4 + 8
    list(operators.flush(cast(Any, None)))
    assert all({*of} == {number} for number, of in noted.items())


class Passing:
    """A logic that gives what it takes."""

    def take(self, batch: Any, port: int) -> Iterator[Any]:
        del port
        yield None, batch


def test_rows_are_counted_and_bytes_about() -> None:
    node = Node(0, MappingBatches(cast(Any, None)), (), ROWS)
    mark = [0] * 4
    operators = Operators(Chain(0, (node,), (), ()), cast(Any, {0: Passing()}), mark)
    for rows in (1, 30_000, 30_000, 30_000):
        list(operators.take(pa.record_batch([[1] * rows], schema=ROWS), 0))
    assert mark[STREAMS:] == [90_001, 8 * 90_001]


class Refusing:
    """A logic whose rows go to an output that nobody reads, and that its node does not declare."""

    def take(self, batch: Any, port: int) -> Iterator[Any]:
        del port
        yield "bad", batch
        yield None, batch


def test_what_goes_to_an_output_that_is_not_declared_is_not_counted() -> None:
    node = Node(0, MappingBatches(cast(Any, None)), (), ROWS)
    mark = [0] * 4
    operators = Operators(Chain(0, (node,), (), ()), cast(Any, {0: Refusing()}), mark)
    assert [output for _, output, _ in operators.take(BATCH, 0)] == ["bad", None]
    assert mark[STREAMS:] == [1, 8]


class Forking:
    """A logic whose process becomes two."""

    def take(self, batch: Any, port: int) -> Iterator[Any]:
        del port
        self.child = os.fork()
        yield None, batch


def test_a_process_that_a_function_forks_ends_where_it_returns() -> None:
    logic, first = Forking(), os.getpid()
    node = Node(0, MappingBatches(cast(Any, None)), (), ROWS)
    operators = Operators(Chain(0, (node,), (), ()), cast(Any, {0: logic}))
    emitted = list(operators.take(BATCH, 0))
    if os.getpid() != first:
        os._exit(7)  # it returned
    assert len(emitted) == 1
    _, status = os.waitpid(logic.child, 0)
    assert os.waitstatus_to_exitcode(status) == 1
