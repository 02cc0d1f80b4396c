"""The operators of a chain: a batch goes in at the head, and through all that it feeds."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from onefold.core.contract import Committable, TaskId
from onefold.core.errors import OnefoldError, Terminal
from onefold.core.values.plain import plain, raised_at
from onefold.engine.dataflow.chains import Chain
from onefold.engine.dataflow.progress_marks import NODE, STREAMS, Mark, no_mark
from onefold.engine.logics.endpoints import ReadingLogic, WritingLogic
from onefold.engine.logics.logic import Clocked, EventTimed, Input, Logic, Output
from onefold.engine.own_process import OwnProcess
from onefold.flow.processing.rows import OF
from onefold.flow.time.clocks import NO_TIMES, ClockStatus, Times

_WEIGH_EVERY = 50_000  # rows

Emitted: TypeAlias = "tuple[int, str | None, pa.RecordBatch]"  # by a node's number, on one of its outputs

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Operators:
    """Those of one subtask, with one logic a node, by the nodes' numbers. What they emit is never empty."""

    def __init__(self, chain: Chain, logics: Mapping[int, Logic], mark: Mark | None = None) -> None:
        self._chain = chain
        self._streams = {stream: STREAMS + 2 * number for stream, number in chain.streams.items()}
        self._weighed_next, self._row_bytes = Counter[int](), dict[int, float]()  # by these places
        self._mark = no_mark(chain.first_stream + len(self._streams)) if mark is None else mark
        self._logics = logics
        self._own = OwnProcess()
        self.need_task = any(isinstance(logic, WritingLogic | Clocked) for logic in logics.values())

    def restored(self) -> None:
        """Their states have other entries now, of other key groups."""
        for logic in self._logics.values():
            if isinstance(logic, Clocked):
                logic.restored()

    def begin(self, task: TaskId) -> None:
        """Before the epoch's first batch, where they need the task."""
        for logic in self._logics.values():
            if isinstance(logic, WritingLogic | Clocked):
                logic.begin(task)

    def take(self, batch: Input, port: int) -> Iterator[Emitted]:
        """A batch of the head's input numbered `port`."""
        return self._process(self._chain.head.number, batch, port)

    def begin_again(self, task: TaskId) -> None:
        """In the midst of the epoch of that task: an earlier one has come to its end, and time goes by that now."""
        for logic in self._logics.values():
            if isinstance(logic, Clocked):
                logic.begin(task)

    def flush(self, task: TaskId, times: Times | None = NO_TIMES) -> Iterator[Emitted]:
        """What is emitted once an epoch, after its last batch. `times` is all that the epoch says of event time; None
        in the midst of one, which a snapshot does not wait for: the time then stands still."""
        for node in self._chain.nodes:
            self._mark[NODE] = node.number + 1
            logic = self._logics[node.number]
            if times is not None and isinstance(logic, EventTimed):
                logic.advance(times, task)
            yield from self._emit(node.number, partial(logic.flush, task))

    def prepare(self) -> list[Committable]:
        """What the writers of sinks have prepared, after `flush`."""
        prepared: list[Committable] = []
        for number, logic in self._logics.items():
            if isinstance(logic, WritingLogic):
                self._mark[NODE] = number + 1
                prepared += logic.prepare()
        return prepared

    def bad_of_epoch(self) -> int:
        """How many records of the epoch could not be read; counts anew from here."""
        return sum(logic.bad_of_epoch() for logic in self._logics.values() if isinstance(logic, ReadingLogic))

    def passed(self) -> Counter[int]:
        """The rows of each of the chain's streams, at twice its number, and about their bytes, behind that; counts anew
        from here."""
        found = Counter[int]()
        for place in self._streams.values():
            for at in (place, place + 1):
                found[at - STREAMS], self._mark[at] = self._mark[at], 0
        self._weighed_next.clear()
        return +found

    def timer_ms(self) -> int | None:
        """When the next timer is due, in milliseconds since 1970."""
        clocked = [logic.timer_ms() for logic in self._logics.values() if isinstance(logic, Clocked)]
        return min((ms for ms in clocked if ms is not None), default=None)

    def clock(self) -> ClockStatus | None:
        """Of the operator that goes by event time, of which a chain has one at most."""
        clocks = (logic.clock() for logic in self._logics.values() if isinstance(logic, EventTimed))
        return next((clock for clock in clocks if clock is not None), None)

    def abort(self) -> None:
        """Undo what is not prepared."""
        for logic in self._logics.values():
            if isinstance(logic, WritingLogic):
                logic.abort()

    def close(self) -> None:
        for logic in self._logics.values():
            logic.close()

    def _process(self, node: int, batch: Input, port: int) -> Iterator[Emitted]:
        self._mark[NODE] = node + 1
        yield from self._emit(node, partial(self._logics[node].take, batch, port))

    def _emit(self, node: int, call: Callable[[], Iterable[Output]]) -> Iterator[Emitted]:
        """Into the nodes of the chain that read them, and then out of it."""
        for output, batch in self._named(node, call):
            self._own.check()
            if not batch.num_rows:
                continue
            if (at := self._streams.get((node, output))) is not None:  # else bad records that are skipped
                self._count(at, batch)
            for other, port in self._readers(node, output):
                yield from self._process(other, batch, port)
            yield node, output, batch
            self._mark[NODE] = node + 1

    def _count(self, at: int, batch: pa.RecordBatch) -> None:
        """Its rows, and about its bytes: to weigh each batch would take longer than many a function."""
        rows = self._mark[at] + batch.num_rows
        if rows >= self._weighed_next[at]:
            self._weighed_next[at] = rows + _WEIGH_EVERY
            self._row_bytes[at] = batch.nbytes / batch.num_rows
        self._mark[at] = rows
        self._mark[at + 1] += round(batch.num_rows * self._row_bytes[at])

    def _named(self, number: int, call: Callable[[], Iterable[Output]]) -> Iterator[Output]:
        """What a logic gives. Raises what a function in it raises with the operator's name and the function's line."""
        try:
            yield from call()
        except (Exception, SystemExit) as error:
            name = next(node.name for node in self._chain.nodes if node.number == number)
            raise operator_failed(name, error) from error

    def _readers(self, node: int, output: str | None) -> Iterator[tuple[int, int]]:
        for other in self._chain.nodes[1:]:
            for port, edge in enumerate(other.inputs):
                if (edge.source, edge.output) == (node, output):
                    yield other.number, port


def operator_failed(name: str, error: BaseException) -> BaseException:
    """The error of an operator for one that came out of it. Errors of onefold's own, and of a machine without room or
    without a package, say themselves what is wrong."""
    is_of_machine = isinstance(error, MemoryError | ImportError) or getattr(error, "errno", None) in _NO_ROOM
    if isinstance(error, OnefoldError) or is_of_machine:
        return error
    of = next((f", {each}" for each in getattr(error, "__notes__", ()) if each.startswith(OF)), "")
    return Terminal(
        "operator-failed",
        f"a function of {name} has raised {type(error).__name__}{raised_at(error)}{of}: {plain(str(error))}. Correct"
        " the function, or filter such rows before it",
    )
