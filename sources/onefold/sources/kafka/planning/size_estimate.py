"""Estimates the size of records by samples, which turns a limit in bytes into one in offsets."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from onefold.sources.kafka.config.model import KafkaSourceConfig
from onefold.sources.kafka.fetching.fetched_records import FetchedRecords, WantedFields
from onefold.sources.kafka.fetching.fetcher import fetch
from onefold.sources.kafka.offset_range import OffsetRange
from onefold.sources.kafka.planning.offset_snapshot import Partition

__all__ = ["SizeEstimate"]

_SAMPLE = 200  # offsets
_TOPICS_MAX = 8  # sampled for one batch; with more topics, the others go by what was seen of them before
_NEW_WEIGHT = 0.5
_SMALL = {"queued.min.messages": "1", "fetch.message.max.bytes": str(256 * 1024)}  # nothing is read ahead


class SizeEstimate:
    """The mean bytes per offset of each topic, by samples of what comes next; what came before counts on, halved."""

    def __init__(self, source: KafkaSourceConfig) -> None:
        self._source = source
        self.means: dict[str, float] = {}

    def records_in(self, bytes_max: int, start: Mapping[Partition, int], goal: Mapping[Partition, int]) -> int:
        """How many offsets, shared among the partitions in proportion to their lag, make about `bytes_max`; 1 at least.

        Bytes are those of keys and values, unpacked. Offsets without a record (markers, compaction) count as
        none.
        """
        lags = {p: end - start.get(p, 0) for p, end in goal.items() if end > start.get(p, 0)}
        if not lags:
            return 1
        busiest: dict[str, tuple[int, int]] = {}  # by topic: the lag and the number of the partition that lags most
        for (topic, number), lag in lags.items():
            busiest[topic] = max(busiest.get(topic, (0, 0)), (lag, number))
        for topic, (lag, number) in sorted(busiest.items(), key=lambda item: item[1], reverse=True)[:_TOPICS_MAX]:
            first = start.get((topic, number), 0)
            self._sample(OffsetRange(topic, number, first, first + min(lag, _SAMPLE)))
        known = sum(self.means.values()) / max(1, len(self.means))
        total = sum(lag * self.means.get(topic, known) for (topic, _), lag in lags.items())
        return max(1, int(bytes_max * sum(lags.values()) / max(1.0, total)))

    def _sample(self, wanted: OffsetRange) -> None:
        source = self._source
        settings = {**source.client_config, **_SMALL}
        found = fetch(
            source.bootstrap_servers,
            settings,
            wanted,
            columns=WantedFields(key=True),
            timeout_s=source.timeout_s,
            compiled=source.compiled_fetch,
        )
        size = sum(map(_bytes_of, found))
        mean = size / (wanted.end - wanted.start)
        before = self.means.get(wanted.topic)
        self.means[wanted.topic] = mean if before is None else before + _NEW_WEIGHT * (mean - before)


def _bytes_of(records: FetchedRecords) -> int:
    keys = pc.sum(pc.binary_length(records.column(pa.field("key", pa.binary())))).as_py()
    return sum(len(value) for value in records.values if value is not None) + (keys or 0)
