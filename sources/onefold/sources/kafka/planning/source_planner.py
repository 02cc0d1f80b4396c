"""The contract's planner of a Kafka source: positions in, positions and splits out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onefold.core.positions import Positions, Range
from onefold.core.source import Split
from onefold.sources.kafka.config.model import KafkaSourceConfig
from onefold.sources.kafka.planning.group_positions import GroupPositions
from onefold.sources.kafka.planning.offset_planner import Planner, up_to
from onefold.sources.kafka.planning.offset_snapshot import OffsetSnapshot

__all__ = ["KafkaSourcePlanner"]


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
        self.seen: OffsetSnapshot | None = None  # where the topics ended when that was asked last

    def initial(self) -> Positions:
        return self._planner.initial().positions()

    def latest(self, start: Positions) -> Positions:
        at = OffsetSnapshot.of(start)
        seen = self._planner.ends(at)
        return at.moved_to(seen.offsets, seen).positions()

    def behind(self, start: Positions) -> Mapping[str, int]:
        """Markers and compacted records count."""
        at, there = OffsetSnapshot.of(start).offsets, OffsetSnapshot.of(self.latest(start)).offsets
        return {f"{topic}/{number}": end - at.get((topic, number), 0) for (topic, number), end in there.items()}

    def end(self, start: Positions) -> Positions:
        at = OffsetSnapshot.of(start)
        self.seen = seen = self._planner.ends(at)
        goal = seen.offsets if self._until is None else up_to(self._until, at, seen)
        if self._planner.wait_s(at, goal) > 0:
            return start
        return self._planner.next(at, seen, goal, self._source.max_offsets_per_trigger).positions()

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
