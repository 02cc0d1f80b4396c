"""Checks that offsets by which a destination compares rows are still those of the same topic.

A destination that drops rows with lower numbers would drop all rows of a topic that was deleted and made anew, since
its offsets begin at 0 again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from onefold.core.errors import ConfigError
from onefold.core.positions import Positions, Range

_OFFSETS = frozenset({"kafka_offset", "offset", "source_offset"})
_PLACES = frozenset({"kafka_topic", "kafka_partition", "topic", "partition", "source_topic", "source_partition"})
_LIVES = frozenset({"kafka_topic_id", "pipeline"})  # with one of these, what counts anew has another name


def counts_offsets(columns: Sequence[str]) -> bool:
    """Whether rows that are compared by these columns, the first of them first, are compared by their offsets."""
    if _LIVES.intersection(columns):
        return False
    return next((name for name in columns if name not in _PLACES), "") in _OFFSETS


def check_counted(sink: str, span: Range, others: Mapping[str, Collection[Positions]]) -> None:
    """Raise ConfigError where rows of `span` would pass for repeats of what others wrote from a topic of that name."""
    now = span.end.topic_ids()
    starts = span.start.topics()
    for pipeline, stands in sorted(others.items()):
        for theirs in stands:
            was = theirs.topic_ids()
            for topic, ends in theirs.topics().items():
                if was.get(topic) in (None, now.get(topic)) or topic not in now:
                    continue
                mine, end = starts.get(topic, {}), max(ends.values())
                if min((mine.get(number, 0) for number in span.end.topics().get(topic, {})), default=0) < end:
                    raise ConfigError(
                        "offsets-of-older-topic",
                        f"sink {sink!r} tells rows apart by their offsets, and pipeline {pipeline!r} wrote there up to"
                        f" offset {end} of a topic {topic!r} that was another one (id {was[topic]}, now {now[topic]}):"
                        " rows below that would be taken for ones that are there. Let the ids have the topic's id"
                        " (columns=[..., 'topic_id'], and kafka_topic_id for kafka_topic in id=), or let numbers go on"
                        f" (a column of its own, kafka_offset + {end} or more); where the destination is new or empty,"
                        " give the sink another name=",
                    )
