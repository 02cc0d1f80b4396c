"""A source and sinks that leave out a part of the work: what it takes is the difference to a flow that has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import pyarrow as pa

from onefold.core import Binding, Committable, Committer, Decided, Guarantee, LedgerEntry, SinkKind, SinkWriter, TaskId
from onefold.core.checks import present
from onefold.core.protocol.binding import bound
from onefold.core.source import Part, Split
from onefold.core.values.batches import empty_batch
from onefold.core.writing.dead_letters import BAD_COLUMNS
from onefold.sinks.postgres.copy.encoding import Encoding
from onefold.sinks.postgres.sink_plan import PostgresPlan
from onefold.sources import KafkaSource
from onefold.sources.kafka import fetch
from onefold.sources.kafka.range_reader import Parsing
from onefold.trials.workload.unprotected import UnprotectedSink

__all__ = ["DroppingSink", "EncodingSink", "FetchingSource", "OnlyCopyingSink"]


class FetchingSource(KafkaSource):
    """Fetches records as they are fetched to be parsed, and parses none: all its parts are empty."""

    def read(self, split: Split, *, guarded: bool = False) -> Iterator[Part]:
        schema = self.arrow_schema()
        part = Part(empty_batch(schema), empty_batch(BAD_COLUMNS))
        columns = Parsing(self, schema, guarded=guarded).wanted
        for _ in fetch(self.bootstrap_servers, self.client_config, split.range, columns=columns):
            yield part


class OnlyCopyingSink(UnprotectedSink):
    """Without protection: the same COPY statements, each committed by its writer at the epoch's end. Postgres has no
    ledger row and nothing prepared, and the driver nothing to check or to commit."""

    @cached_property
    def _committer(self) -> Committer:
        return _InMemory(self.name)

    def store_url(self) -> str | None:
        return None

    def recover(self, pipeline: str) -> Committer:
        del pipeline
        return self._committer

    def open(self, pipeline: str, schema: pa.Schema) -> Committer:
        super().open(pipeline, schema).close()
        return self._committer


class EncodingSink(OnlyCopyingSink):
    """Encodes the rows as COPY wants them, and drops the bytes."""

    def writer(self, task: TaskId) -> SinkWriter:
        del task
        return _EncodingWriter(present(self._plan, "opened before it writes"))


class DroppingSink:
    """Drops the rows."""

    name = "nowhere"

    def __init__(self) -> None:
        self._committer = _InMemory(self.name)

    def guarantee(self) -> Guarantee:
        return Guarantee("dropping", SinkKind.TWO_PHASE, False)

    def store_url(self) -> str | None:
        return None

    def recover(self, pipeline: str) -> Committer:
        del pipeline
        return self._committer

    def open(self, pipeline: str, schema: pa.Schema) -> Committer:
        del pipeline, schema
        return self._committer

    def writers_max(self) -> int | None:
        return None

    def writer(self, task: TaskId) -> SinkWriter:
        del task
        return _DroppingWriter()


class _DroppingWriter:
    def write(self, batch: pa.RecordBatch) -> None: ...

    def prepare(self) -> Committable | None:
        return None

    def abort(self) -> None: ...


class _EncodingWriter(_DroppingWriter):
    def __init__(self, plan: PostgresPlan) -> None:
        self._encoding = Encoding(plan, 0)
        self._encoder = self._encoding.encoder()
        self._encoder.write_header()

    def write(self, batch: pa.RecordBatch) -> None:
        self._encoding.check(batch.schema)
        self._encoder.write_batch(self._encoding.wire(batch))


class _InMemory:
    """The committer of a sink that leaves nothing to commit. Its ledger row, which the protocol asks for, is the
    driver's."""

    def __init__(self, sink: str) -> None:
        self._sink = sink
        self._row: LedgerEntry | None = None

    def verify(self, committables: Sequence[Committable]) -> None: ...

    def commit(self, decided: Decided, committables: Sequence[Committable]) -> None: ...

    def abort(self, committables: Sequence[Committable]) -> None: ...

    def leftovers(self, up_to_generation: int) -> Sequence[Committable]:
        del up_to_generation
        return ()

    def ledger(self) -> LedgerEntry | None:
        return self._row

    def bind(self, binding: Binding) -> None:
        self._row = bound(self._row, binding, self._sink)

    def write_ledger(self, entry: LedgerEntry) -> None:
        self._row = entry

    def close(self) -> None: ...
