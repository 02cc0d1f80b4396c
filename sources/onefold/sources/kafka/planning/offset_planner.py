"""Plans where the next batch of a stream begins and ends, and refuses one that would lose records."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from onefold.core.errors import ConfigError, DataLoss, Retriable
from onefold.core.positions import Positions, Range
from onefold.core.source import Split
from onefold.core.values.remedies import RESET
from onefold.core.waiting import Wait
from onefold.sources.kafka.offsets import OffsetRange, Offsets, OffsetSnapshot, Partition, names_of
from onefold.sources.kafka.planning import start_positions
from onefold.sources.kafka.planning.broker import Broker, Topic
from onefold.sources.kafka.planning.group_positions import GroupPositions
from onefold.sources.kafka.planning.limits import Rate, SizeEstimate, limit
from onefold.sources.kafka.planning.subscription import PROPAGATION_S
from onefold.sources.kafka.planning.truncation import check_not_truncated, deleted
from onefold.sources.kafka.source_options import KafkaSourceConfig


class KafkaSourcePlanner:
    """Plans epochs of one source, as `SourcePlanner`. A topic's partitions that come later start at their first
    record; with `until`, they are left out."""

    unit = "record"

    def __init__(
        self, source: KafkaSourceConfig, frozen: Positions | None = None, until: Positions | None = None
    ) -> None:
        self._source = source
        if source.starting_text == "ledger":  # a flow replaces it by its ledger's positions, where it has any
            source = replace(source, starting_offsets="earliest")
        broker = source.broker()  # which connects while its driver starts
        self._planner = Planner(source, None if frozen is None else OffsetSnapshot.of(frozen), broker)
        self._until = None if until is None else OffsetSnapshot.of(until).offsets
        self._group = GroupPositions(source)
        self._cut: Collection[str] = ()
        self.seen: OffsetSnapshot | None = None  # where the topics ended when that was asked last

    def initial(self) -> Positions:
        return self._planner.initial().positions()

    def latest(self, start: Positions) -> Positions:
        at = OffsetSnapshot.of(start)
        seen = self._planner.ends(at)
        return at.moved_to(seen.offsets, seen).positions()

    def behind(self, start: Positions) -> Mapping[str, int]:
        """Markers and compacted records count."""
        at = OffsetSnapshot.of(start)
        goal = self._goal(at, OffsetSnapshot.of(self.latest(start)))
        return {f"{topic}/{number}": end - at.offsets.get((topic, number), 0) for (topic, number), end in goal.items()}

    def end(self, start: Positions) -> Positions:
        at = OffsetSnapshot.of(start)
        self.seen = seen = self._planner.ends(at)
        goal = self._goal(at, seen)
        waits = self._planner.wait_s(at, goal) > 0
        end = at if waits else self._planner.next(at, seen, goal, self._source.max_offsets_per_trigger)
        self._cut = [f"{topic}/{n}" for (topic, n), there in goal.items() if end.offsets.get((topic, n), 0) < there]
        return start if waits else end.positions()

    def cut(self) -> Collection[str]:
        return self._cut

    def _goal(self, at: OffsetSnapshot, seen: OffsetSnapshot) -> Mapping[Partition, int]:
        return seen.offsets if self._until is None else up_to(self._until, at, seen)

    def splits(self, span: Range) -> list[Split]:
        begin, end = OffsetSnapshot.of(span.start), OffsetSnapshot.of(span.end)
        self._planner.check_again(begin, end)
        found = self._planner.ranges(begin, end)
        return [Split(f"{each.topic}/{each.partition}", each, each.end - each.start) for each in found]

    def is_done(self, at: Positions) -> bool:
        if self._until is None:
            return False
        reached = OffsetSnapshot.of(at).offsets
        return all(reached.get(partition, 0) >= end for partition, end in self._until.items())

    def completed(self, end: Positions) -> None:
        """Shows the position in the source's `commit_to_group`, where it names one."""
        self._group.show(end)

    def close(self) -> None:
        self._group.close()
        self._planner.close()


_ID_PROPAGATION_S = 1.0  # a broker that lags behind may know the topic that had the name before


class Planner:
    """Plans the batches of one source. Pickles without its client; where there is none, a question opens one."""

    def __init__(
        self, source: KafkaSourceConfig, frozen: OffsetSnapshot | None = None, broker: Broker | None = None
    ) -> None:
        self.source = source
        self._frozen = frozen  # by a pipeline, maybe long ago: partitions that came later start at their first record
        self._initial: OffsetSnapshot | None = None
        self._checked: OffsetSnapshot | None = None
        self._is_kept = False
        self._broker = broker
        self._sizes = SizeEstimate(source)
        self._rate = None if source.max_offsets_per_second is None else Rate(source.max_offsets_per_second)
        self._whole: dict[Partition, tuple[int, int | None]] = {}  # not cut below that offset, by that epoch's leader

    @property
    def broker(self) -> Broker:
        if self._broker is None:
            self._broker = self.source.broker()
        return self._broker

    def initial(self) -> OffsetSnapshot:
        """Where the first batch begins. Asked of the broker at most once, however often Spark asks."""
        if self._initial is None:
            self._initial = self._frozen or start_positions.initial(
                self.broker, self.source.subscription, self.source.starting_text
            )
        return self._initial

    def ends(self, start: OffsetSnapshot) -> OffsetSnapshot:
        """Where all topics of the source end now. Raises `DataLoss` where that does not go on from `start`."""
        read = self.source.subscription.covers
        on_its_way = self.broker.ask_ends(partition for partition in start.offsets if read(partition[0]))
        topics = self._check(start)
        partitions = [(topic, number) for topic, found in topics.items() for number in found.partitions]
        seen = self.broker.ends(partitions, on_its_way)
        at = {partition: offset for partition, offset in start.offsets.items() if partition[0] in topics}
        ends = not_behind(self.broker, at, dict(seen.offsets))
        self._check_kept(at)
        whole = {p: (offset, seen.epochs.get(p)) for p, offset in at.items()}
        asked = {p: epoch for p, epoch in start.epochs.items() if p in at and self._whole.get(p) != whole[p]}
        check_not_truncated(self.source, OffsetSnapshot(at, {}, asked), seen)
        self._whole = whole
        ids = {topic: found.id for topic, found in topics.items() if found.id is not None}
        return OffsetSnapshot(ends, ids, seen.epochs)

    def wait_s(self, start: OffsetSnapshot, goal: Mapping[Partition, int]) -> float:
        """How long `max_offsets_per_second` holds the next batch back, which is on the way from `start` to `goal`."""
        lag = _lag(start.offsets, goal)
        return 0.0 if self._rate is None or not lag else self._rate.wait_s(lag)

    def next(
        self, start: OffsetSnapshot, seen: OffsetSnapshot, goal: Mapping[Partition, int], records_max: int | None
    ) -> OffsetSnapshot:
        """The end of the next batch: on the way from `start` to `goal`, which was `seen`, as far as the limits let."""
        bytes_max = self.source.max_bytes_per_trigger
        if bytes_max is not None:
            by_bytes = self._sizes.records_in(bytes_max, start.offsets, goal)
            records_max = by_bytes if records_max is None else min(records_max, by_bytes)
        if self._rate is not None:
            by_rate = self._rate.offsets_max()
            records_max = by_rate if records_max is None else min(records_max, by_rate)
        ends = limit(start.offsets, goal, records_max)
        if self._rate is not None:
            lag, left = _lag(start.offsets, goal), _lag(ends, goal)
            self._rate.take(lag - left, left)
        end = start.moved_to(ends, seen)
        self._checked = end
        return end

    def check_again(self, start: OffsetSnapshot, end: OffsetSnapshot) -> None:
        """A batch that was planned before a restart is read from the topics of now: are they the same ones?"""
        if end != self._checked:
            self._check(OffsetSnapshot({**start.offsets, **end.offsets}, {**start.ids, **end.ids}))
            self._check_kept({p: offset for p, offset in start.offsets.items() if offset < end.offsets.get(p, 0)})

    def ranges(self, start: OffsetSnapshot, end: OffsetSnapshot) -> list[OffsetRange]:
        """What is to be read from `start` to `end`. Raises ConfigError where a topic's id is wanted and unknown."""
        ids = {**start.ids, **end.ids}
        unknown = {topic for topic, _ in end.offsets} - ids.keys()
        if unknown and "topic_id" in self.source.columns:
            topics = ", ".join(sorted(unknown))
            raise ConfigError(
                "topic-id-unknown",
                f"columns has 'topic_id', and of {topics} only the name is known here: brokers have ids of topics from"
                " 2.8 on. Leave 'topic_id' out",
            )
        return ranges(start.offsets, end.offsets, ids)

    def close(self) -> None:
        """Let go of the connection; the next question opens another."""
        self._broker = None

    def _check_kept(self, start: Offsets) -> None:
        """Raise `DataLoss` if Kafka has deleted records at the stream's start. This is checked once in a stream's life:
        the fetcher finds records that are deleted later. An open consumer may still hold the deleted ones, so it would
        not notice."""
        if self._is_kept or not start:
            return
        first = self.broker.earliest(start)
        for partition, offset in sorted(start.items()):
            if first[partition] > offset:
                raise deleted(f"{partition[0]}/{partition[1]}", offset, first[partition])
        self._is_kept = True

    def _check(self, start: OffsetSnapshot) -> Mapping[str, Topic]:
        known = {topic for topic, _ in start.offsets}
        self.source.subscription.check_continues(known, "the checkpoint")
        wait = Wait(_ID_PROPAGATION_S)
        while True:
            topics = self.source.subscription.find(self.broker, known)
            try:
                start_positions.check_ids(start.ids, topics)
                return topics
            except DataLoss:
                if not wait.again():
                    raise

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_broker": None}


def up_to(target: Mapping[Partition, int], start: OffsetSnapshot, seen: OffsetSnapshot) -> Offsets:
    """What was `seen`, as far as `target` goes: partitions that it does not have are left out, and none goes back."""
    return {
        partition: max(start.offsets.get(partition, 0), min(end, seen.offsets[partition]))
        for partition, end in target.items()
        if partition in seen.offsets
    }


def _lag(start: Mapping[Partition, int], goal: Mapping[Partition, int]) -> int:
    return sum(max(0, end - start.get(partition, 0)) for partition, end in goal.items())


def ranges(
    start: Mapping[Partition, int], end: Mapping[Partition, int], ids: Mapping[str, str] | None = None
) -> list[OffsetRange]:
    """One range for each partition that has anything between the two. A partition without a start stands at 0."""
    ids = ids or {}
    for (topic, number), offset in start.items():
        if offset > end.get((topic, number), -1):
            raise DataLoss(
                "positions-of-another-run",
                f"{topic}/{number}: this batch would start at {offset} and end at {end.get((topic, number), 'nothing')}"
                ": the checkpoint and the starting offsets belong to different runs, or the topic was made anew",
            )
    return [
        OffsetRange(topic, number, start.get((topic, number), 0), offset, ids.get(topic))
        for (topic, number), offset in sorted(end.items())
        if offset > start.get((topic, number), 0)
    ]


def not_behind(broker: Broker, start: Mapping[Partition, int], latest: Offsets) -> Offsets:
    """`latest`, once no partition ends before its start; raises `DataLoss` if one stays behind.

    A start beyond the last stable offset is none: it was found with read_uncommitted, or given by hand.
    """
    wait = Wait(PROPAGATION_S)  # a new leader may not know the old end yet
    while True:
        behind = sorted(p for p, offset in start.items() if latest.get(p, -1) < offset)
        if not behind:
            return latest
        try:
            end = broker.log_end([p for p in behind if p in latest])
            if all(end.get(p, -1) >= start[p] for p in behind):
                return latest | {p: start[p] for p in behind}
            if not wait.again():
                lost = next(p for p in behind if end.get(p, -1) < start[p])
                raise _beyond_the_end(lost, start[lost], end.get(lost))
            latest = broker.latest(latest)
        except Retriable as error:
            raise error.reworded(f"{error.message} (checking whether {names_of(behind)} lost records)") from error


def _beyond_the_end(partition: Partition, offset: int, end: int | None) -> DataLoss:
    topic, number = partition
    now = f"the partition now ends at {end}" if end is not None else "the partition is gone"
    return DataLoss(
        "partition-too-short",
        f"{topic}/{number}: the next offset to read is {offset}, but {now}. The topic was deleted and made anew, or its"
        " log was cut (an unclean leader election, a lost disk). Restore it, or accept the loss, with explicit"
        f" starting_offsets for every partition: {RESET}",
    )
