"""`check_sink`: what a connector author runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from onefold.core.contract import Sink, SinkKind
from onefold.core.errors import ConfigError
from onefold.core.testing.conformance.call_processes import Processes
from onefold.core.testing.conformance.checks.crashes import DRIVER_CRASHES, WRITER_CRASHES
from onefold.core.testing.conformance.checks.every_sink import SINK_CHECKS
from onefold.core.testing.conformance.checks.last_resource import LAST_RESOURCE
from onefold.core.testing.conformance.checks.two_phase import TWO_PHASE
from onefold.core.testing.conformance.checks.write_through import WRITE_THROUGH
from onefold.core.testing.conformance.promises import Book, ConformanceReport, Promise
from onefold.core.testing.conformance.report import modules_of, passed
from onefold.core.testing.conformance.strikes import Striker
from onefold.core.testing.conformance.subject_kinds import SinkSubject, SubjectKind
from onefold.core.testing.conformance.workbench import MakeBatch

KINDS: dict[SinkKind, SubjectKind] = {
    SinkKind.TWO_PHASE: TWO_PHASE,
    SinkKind.LAST_RESOURCE: LAST_RESOURCE,
    SinkKind.WRITE_THROUGH: WRITE_THROUGH,
}
OF_OTHERS = {promise for promise in Promise if promise.name.startswith(("SOURCE_", "AGGREGATOR_"))}


def id_and_name(ids: Sequence[int]) -> pa.RecordBatch:
    """The rows that the kit writes unless it is told otherwise: `id` (int64) and `name` (string)."""
    names = [None if i % 3 == 0 else f"row '{i}'" for i in ids]
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "name": pa.array(names, pa.string())})


def check_sink(
    make_sink: Callable[[], Sink],
    rows: Callable[[], Iterable[int]],
    *,
    prepared: Callable[[], int] | None = None,
    make_batch: MakeBatch = id_and_name,
    make_sibling: Callable[[], Sink] | None = None,
    modules: Sequence[str] = (),
    steps_max: int = 16,
    moments: int = 4,
    patience_s: float = 10.0,
) -> ConformanceReport:
    """Hold a sink's every promise against its real destination, killing real processes at points of every call.

    - `make_sink` makes the sink, the same each time, in any process: a module's function or class, or a `partial`
      of one. The destination must be there, and be a test's: rows and bookkeeping of pipelines `check_*` stay in it.
    - `rows` reads the destination as any reader sees it, and answers with the ids of all rows, repeats included.
    - `prepared`, if given, counts what the destination itself holds that is not visible yet (prepared transactions,
      staged rows), asked without the sink: so that work which `leftovers` forgets shows.
    - `make_batch` makes rows with these ids, for destinations with columns of their own.
    - `make_sibling` makes a sink with another name over the same destination.
    - `modules` name the sink's own code, whose lines are the points where processes are killed: by default the
      package of the sink's class, or its module where it is in none.
    - `steps_max` points inside each call, evenly spread, and `moments` by a timer.
    - `patience_s` bounds the wait for what a killed client's server finishes late.

    Raises BrokenPromise, an AssertionError, at the first promise that does not hold; its text says which, in which
    call, with the process killed where, what was expected, and what was seen in the destination instead. Raises
    ConfigError if something could not be checked. Processes are spawned: a script needs its `if __name__ ==
    "__main__"`.
    """
    begun_s = time.monotonic()
    sink = make_sink()
    guarantee = sink.guarantee()
    kind = KINDS.get(guarantee.kind)
    if kind is None:
        raise ConfigError(
            "sink-kind-unknown",
            f"check_sink knows {', '.join(k.value for k in KINDS)} sinks, and not {guarantee.kind!r}",
        )
    book = Book()
    with Processes(tuple(modules) or modules_of(type(sink))) as processes:
        striker = Striker(processes, book, steps_max, moments)
        subject = SinkSubject(make_sink, rows, prepared, make_batch, make_sibling, patience_s, book, striker, kind)
        checks = (
            (*SINK_CHECKS, *WRITER_CRASHES, *kind.checks, *DRIVER_CRASHES) if kind.is_transactional else kind.checks
        )
        for check in checks:
            try:
                check(subject)
            except Exception as error:
                error.add_note(f"(check_sink, {check.__name__.replace('_', ' ')})")
                raise
    of_kinds = {promise for other in KINDS.values() for promise in other.promises}
    due = set(Promise) - OF_OTHERS - of_kinds - kind.besides | kind.promises
    name = f"{type(sink).__name__} {sink.name!r}, {guarantee.mode} ({guarantee.kind.value})"
    return passed(name, book, due, time.monotonic() - begun_s)
