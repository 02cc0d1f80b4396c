"""The hops in their driver, which plans what the flow's sources read, and sends the splits to the workers durably."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path

from onefold.core.contract import EpochRecord, EpochState
from onefold.core.errors import CheckpointMismatch, Retriable
from onefold.core.positions import Positions, Range
from onefold.core.protocol.effects import StoreFacts
from onefold.core.source import Source
from onefold.core.values.remedies import remedies
from onefold.engine.dataflow.chains import Plan
from onefold.engine.driver.fleet import share
from onefold.engine.mechanisms.transaction.channels import DRIVER, ChannelMap, HopChannel
from onefold.engine.mechanisms.transaction.database import HopDatabase, lost
from onefold.flow.planning import Planners, check_read, initial_of
from onefold.store.job.session import Session


class Hops:
    """Positions and splits are written in one transaction of the driver's database: a range is read once, in the same
    splits, by the same workers. `sources` are resolved, by their nodes.

    Raises CheckpointMismatch where the shape of the flow is another one, ConfigError where its sources do not go on,
    DataLoss where a database is older than another."""

    def __init__(self, plan: Plan, root: Path, workers: int, sources: Mapping[int, Source], session: Session) -> None:
        self._plan, self._workers, self.channels = plan, workers, ChannelMap(plan, workers)
        self.database = database = HopDatabase(root, DRIVER, self.channels.sent_by(DRIVER))
        for index in range(workers):  # each is there before another one looks into it
            HopDatabase(root, str(index)).close()
        self._check_shape()
        for channel in self.channels.inner:
            if database.waiting(channel) < 0:
                raise lost(channel.name, database.taken(channel)[0])
        begun, at = database.get("begun", None), database.get("at", None)
        frozen = None if begun is None else Positions.from_json(begun)
        self._planners = Planners(sources, frozen, session.journal)
        begin = frozen or session.patience.retry(self._planners.initial, "asking where the sources begin")
        self._at = begin if at is None else Positions.from_json(at)
        check_read(session.name, sources.values(), self._at)
        past = EpochRecord(session.name, 1, 1, EpochState.COMPLETE, Range(begin, self._at), 0, "", 0, "")
        facts = StoreFacts("", 0, None if frozen is None else past, frozen=frozen)
        setting = initial_of(session.name, sources.values(), facts, begin).setting
        if frozen is None:
            with database.writing():
                database.put("begun", begin.with_setting(setting).to_json())
        self._planners.begin_added(session.name, self._at, session.pin)
        self._told = begin  # up to where sources know that it is taken

    def look(self) -> None:
        """Plan the next range, once the one before is taken. Raises Retriable where a source's server is away, and
        nothing waits for the sinks."""
        try:
            if self._is_taken() and (end := self._planners.end(self._at)) != self._at:
                self._send(end)
        except Retriable:
            if not any(self.database.waiting(channel) for channel in self.channels.last):
                raise

    @property
    def is_done(self) -> bool:
        """Whether the sources have ended, and all that comes of them was sent to sinks: a channel whose sender's own
        ones are all taken gets nothing more."""
        is_planned = self._is_taken() and self._planners.is_done(self._at)
        return is_planned and not any(self.database.waiting(channel) for channel in self.channels.inner)

    def delivered(self, up_to: Mapping[HopChannel, int]) -> None:
        """The sinks have that for good."""
        with self.database.writing():
            for channel, number in up_to.items():
                self.database.put(f"taken {channel.name}", (number, 0, 0))

    def close(self) -> None:
        self._planners.close()
        self.database.close()

    def _is_taken(self) -> bool:
        """Whether all that was planned is; then sources are told."""
        if any(self.database.waiting(channel) for channel in self.channels.splits.values()):
            return False
        if self._told != self._at:
            self._planners.completed(self._at)
            self._told = self._at
        return True

    def _send(self, end: Positions) -> None:
        splits = self._planners.splits(Range(self._at, end))
        with self.database.writing():
            for (chain, index), channel in self.channels.splits.items():
                for split in share(splits[self._plan.chains[chain].head.number], index, self._workers):
                    self.database.send(channel, (0, pickle.dumps(split)))
            self.database.put("at", end.to_json())
        self._at = end

    def _check_shape(self) -> None:
        """What has to be as it was for channels and state to mean the same."""
        nodes, of = self._plan.graph.nodes, self._plan.graph.max_parallelism
        edges = [f"{each.edge} to {nodes[each.target].name} of {each.schema}" for each in self._plan.exchanges]
        shape = json.dumps([self._workers, of, [node.name for node in nodes], edges])
        if self.database.get("shape", shape) != shape:
            raise CheckpointMismatch(
                "hops-changed",
                f"flow {self._plan.graph.flow!r} has other operators, columns or workers than it began with, and with"
                " mechanism='transaction' what is on its way between them would come to the wrong ones. Nothing was"
                " written. Start it as it was (functions may be others); or, to begin anew,"
                f" {remedies().begin_anew(empties=True)}",
            )
        with self.database.writing():
            self.database.put("shape", shape)
