"""`onefold_ranges`: all sources of a flow as one streaming data source of Spark. A row is a split of one source.

Spark calls the stream reader in one long-lived Python process of the driver's machine: that plans, as the engine's
driver does. Nothing is read here; the tasks do that with the rows. Offsets are the joined positions of all sources.
"""

from __future__ import annotations

import base64
import logging
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from onefold.core.errors import ConfigError, Retriable
from onefold.core.positions import Positions, Range
from onefold.core.source import Journal, Source, Split
from onefold.core.values.ddl import schema_of
from onefold.core.waiting import Wait, hold, retry
from onefold.flow.planning import Planners, check_read
from onefold.flow.time.clocks import SourceEnd
from onefold.spark.runtime.workers import freeze_imports
from onefold.store.job.offset_json import StreamOffset

log = logging.getLogger("onefold")

SPLITS_DDL = "node int, split binary"
TASKS_MAX = 200  # of one source in one epoch; splits beyond that share a task
_OPTION = "secret.wanted"  # Spark shows no option whose name says secret
_PAUSE_S, _HOLD_S = 0.1, 1.0  # a query that is stopped waits as long


@dataclass(frozen=True)
class RangesPlan:
    """What a start has settled for the process that plans: the sources, by their nodes' numbers, where a new checkpoint
    begins, and must end, and the store that has the journals; `timed` are the sources whose event time operators go by:
    their uids, and after how many ms one is idle. Pickles."""

    flow: str
    sources: Mapping[int, Source]
    begin: Positions
    until: Positions | None
    added: Positions
    store: str
    store_id: str
    patience_s: float
    timed: Mapping[int, tuple[str, int | None]]

    def options(self) -> dict[str, str]:
        """Of the data source."""
        pickled: bytes = cloudpickle.dumps(self)  # type: ignore[no-untyped-call]  # it has no types
        return {_OPTION: base64.b64encode(pickled).decode()}

    def planners(self) -> Planners:
        from onefold.store.checkpoint_store import CheckpointStore  # which no task needs
        from onefold.store.journal import StoreJournal

        store = CheckpointStore(self.store)  # which a journal connects to that is asked

        def journal(source: str) -> Journal:
            return StoreJournal(store, self.flow, source, self.store_id)

        return Planners(self.sources, self.begin, journal, self.added)


class OnefoldRanges(DataSource):
    """Takes the options of a `RangesPlan`: made by a flow's start, and by nobody else."""

    @classmethod
    def name(cls) -> str:
        return "onefold_ranges"

    def schema(self) -> str:
        return SPLITS_DDL

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        del schema
        wanted = pickle.loads(base64.b64decode(self.options[_OPTION]))
        assert isinstance(wanted, RangesPlan)
        return _StreamReader(wanted)


@dataclass(frozen=True)
class _Task(InputPartition):
    """Splits of one source, by its node's number, that one task reads in this order; and where the source stands at the
    epoch's end, which counts for event time: the first task names all partitions, another its own ones."""

    node: int
    splits: tuple[Split, ...]
    end: SourceEnd | None


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, wanted: RangesPlan) -> None:
        self._wanted = wanted
        self._is_available_now = self._has_end = False
        self._wait: Wait | None = None  # for a source that does not answer
        self._completed: Positions | None = None

    def __getstate__(self) -> None:
        """A task needs its partition alone."""

    @cached_property
    def _planners(self) -> Planners:
        return self._wanted.planners()

    def initialOffset(self) -> dict[str, Any]:
        return StreamOffset(self._wanted.begin).value()

    def prepareForTriggerAvailableNow(self) -> None:
        self._is_available_now = True

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()  # each source has its own limits

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        del limit
        at = self._known(start)
        if at.began is not None and at.at != self._completed:  # all batches up to here are done
            self._planners.completed(at.at)
            self._completed = at.at
        end = self._until(at) or self._end(at.at)
        if self._is_available_now and end == at.at:
            self._planners.close()  # the query ends, and Spark this process, which no `stop` holds up
        began = at.at if at.began is None else at.began
        timed = self._wanted.timed
        ended = frozenset(uid for node, (uid, _) in timed.items() if self._asked_end(node, end).is_last)
        if end == at.at and len(ended) < len(timed):
            ended = at.ended  # the others are heard of with the next records
        return StreamOffset(end, began, self._planners.added, ended, dict(timed.values())).value()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, until = self._known(start), self._known(end)
        at = begin.at
        if begin.began is None and until.began is not None:
            # The stream's first batch: if it was planned before a restart, its start was asked for anew since.
            at = until.began
        splits = retry(lambda: self._planners.splits(Range(at, until.at)), self._wanted.patience_s)
        return [task for node, of in splits.items() for task in _tasks(node, of, self._source_end(node, until))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        assert isinstance(partition, _Task), partition
        ends = [] if partition.end is None else [partition.end]
        splits = [pickle.dumps(each) for each in (*partition.splits, *ends)]
        yield pa.RecordBatch.from_pydict(
            {"node": [partition.node] * len(splits), "split": splits}, schema=schema_of(SPLITS_DDL)
        )

    def stop(self) -> None:
        if "_planners" in self.__dict__:
            self._planners.close()

    def _known(self, value: dict[str, Any]) -> StreamOffset:
        """An offset of the checkpoint's. Raises ConfigError where no source reads what it is of."""
        offset = StreamOffset.of(value)
        if offset is None:
            raise ConfigError(
                "checkpoint-of-another-query",
                f"the checkpoint of flow {self._wanted.flow!r} has offsets of another query. Nothing was read. Start"
                " the flow with its own checkpoint directory; or with a new, empty one and starting_offsets='ledger'",
            )
        check_read(self._wanted.flow, self._wanted.sources.values(), offset.at)
        self._planners.added = self._planners.added.beside(offset.added)
        return offset

    def _source_end(self, node: int, at: StreamOffset) -> SourceEnd | None:
        """As the batch was planned, whatever end the source has by now. None where nobody asks."""
        if node not in self._wanted.timed:
            return None
        return replace(self._asked_end(node, at.at), is_last=self._wanted.timed[node][0] in at.ended)

    def _asked_end(self, node: int, at: Positions) -> SourceEnd:
        return retry(lambda: self._planners.source_end(node, at), self._wanted.patience_s)

    def _until(self, at: StreamOffset) -> Positions | None:
        """Where the batch from there on must end: an epoch that writes through was begun there."""
        until = self._wanted.until
        if until is None or at.at != self._wanted.begin:
            return None
        # An epoch without records ends where it starts: that is the stream's first batch, and no later one.
        return until if at.began is None or until != at.at else None

    def _end(self, at: Positions) -> Positions:
        """Where a batch from there on may end now. Where a source does not answer, that is where it begins, for as long
        as there is patience; but it waits with AvailableNow, as that would end the query, and where event time counts,
        as Spark would make a batch of its own, for which the source were silent."""
        while True:
            try:
                if self._is_available_now and not self._has_end:
                    self._planners.end_now(at)
                    self._has_end = True
                end = self._planners.end(at)
                is_known = end != at or not self._waits(at)
                self._wait = None
            except Retriable as error:
                self._wait = self._wait or Wait(self._wanted.patience_s, _PAUSE_S, _HOLD_S)
                log.warning("asking how far the sources go waits: %s (try %d)", error, self._wait.pauses + 1)
                if not self._wait.again():
                    raise
                end, is_known = at, not (self._is_available_now or self._wanted.timed)
            if is_known:
                return end
            hold(_PAUSE_S)  # a source's rate, or a file that is watched

    def _waits(self, at: Positions) -> bool:
        """Whether it is not for a batch, where there is nothing to read. What is left unread for a limit is no silence,
        and Spark would make a batch of its own, whose time made it one."""
        if self._is_available_now:
            return not self._planners.is_done(at)
        return bool(self._wanted.timed) and bool(self._planners.cut())


def splits_of(rows: pa.RecordBatch) -> Iterator[tuple[int, Split | SourceEnd]]:
    """The splits of a batch of rows, and the numbers of the nodes that read them; in a task. Behind those of a source
    comes where it stands, if that counts."""
    for node, split in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        yield node, pickle.loads(split)


def _tasks(node: int, splits: Sequence[Split], end: SourceEnd | None) -> list[_Task]:
    """The same ones whenever the epoch runs, on whichever cluster: the order of rows depends on them."""
    step = max(1, -(-len(splits) // TASKS_MAX))
    parts = [tuple(splits[at : at + step]) for at in range(0, len(splits), step)]
    if end is None:
        return [_Task(node, part, None) for part in parts]
    return [_Task(node, part, end if not number else _own_end(part, end)) for number, part in enumerate(parts or [()])]


def _own_end(splits: Sequence[Split], end: SourceEnd) -> SourceEnd:
    """With the partitions of the splits, and the first of all, whose clock is that of splits that are of none: each
    task tells every key group, and need not name what another one does."""
    read = {split.partition for split in splits}
    named = (*end.partitions[:1], *(each for each in end.partitions[1:] if each in read))
    return replace(end, partitions=named)
