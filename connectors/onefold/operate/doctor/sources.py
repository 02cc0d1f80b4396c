"""Examines a source: whether it is there, and what reading it exactly once depends on. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from onefold.core import Positions
from onefold.core.findings import Finding, Level
from onefold.core.positions import Range
from onefold.core.source import MemoryJournal, ReadOnce, Source, own_positions

if TYPE_CHECKING:
    from onefold.sources import KafkaSource

__all__ = ["examined"]

_SILENT_S_MAX = 10.0  # of Kafka's brokers: who waits for an answer waits before a terminal


def examined(source: Source, at: Positions | None) -> Iterator[Finding]:
    """`at`: where the pipeline stands, if it was ever started. Raises what a start raises."""
    if type(source).__name__ == "KafkaSource":  # its client need not be installed
        from onefold.sources.kafka.source_examination import examine

        topics = cast("KafkaSource", source)
        topics = replace(topics, timeout_s=min(topics.timeout_s, _SILENT_S_MAX))
        yield from examine(topics, None if at is None else own_positions(source, at))
        return
    with closing(source.planner(None, None, MemoryJournal())) as planner:
        begin = planner.initial()
        parts = planner.splits(Range(begin, planner.end(begin)))
    counted = "1 part" if len(parts) == 1 else f"{len(parts):,} parts"
    what = "once, whole, in one epoch" if isinstance(source, ReadOnce) else "again as it was, after a crash"
    yield Finding(Level.FINE, f"{source.name} is there, and is read {what}: {counted} at first")
