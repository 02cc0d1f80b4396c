"""How much a batch takes: at most so many offsets, so many bytes by samples, and so many offsets a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from onefold.sources.kafka.fetching.fetched_records import FetchedRecords, WantedFields
from onefold.sources.kafka.fetching.fetcher import fetch
from onefold.sources.kafka.offsets import OffsetRange, Offsets, Partition
from onefold.sources.kafka.source_options import KafkaSourceConfig

BURST_S = 60.0  # what a batch may catch up of the time that the one before took
_WHOLE_S = 1.0  # a batch waits for what a second allows, and what nobody used is kept for so long
_SAMPLE = 200  # offsets
_TOPICS_MAX = 8  # sampled for one batch; with more topics, the others go by what was seen of them before
_NEW_WEIGHT = 0.5
_SMALL = {"queued.min.messages": "1", "fetch.message.max.bytes": str(256 * 1024)}  # nothing is read ahead


def limit(start: Mapping[Partition, int], latest: Mapping[Partition, int], records_max: int | None) -> Offsets:
    """The end of the next batch: at most `records_max` offsets after `start`, shared in proportion to the lag.

    Every partition that lags gets at least one, so that none starves (so a bound below the number of lagging
    partitions is exceeded by their number). A partition without a start stands at 0; none goes beyond its latest,
    nor behind its start.
    """
    lag = {p: max(0, end - start.get(p, 0)) for p, end in latest.items()}
    total = sum(lag.values())
    if records_max is None or total <= records_max:
        return {p: start.get(p, 0) + lag[p] for p in latest}
    lagging = sum(behind > 0 for behind in lag.values())
    beyond = max(0, records_max - lagging)  # what there is to share once each has its one
    share = {p: 1 + (n - 1) * beyond // max(1, total - lagging) if n else 0 for p, n in lag.items()}
    rest = records_max - sum(share.values())
    for p in sorted(lag, key=lambda p: lag[p] - share[p], reverse=True):  # what the rounding down left over
        if rest <= 0:
            break
        more = min(rest, lag[p] - share[p])
        share[p] += more
        rest -= more
    return {p: start.get(p, 0) + share[p] for p in latest}


class Rate:
    """At most `per_s` offsets a second. Over any time of t seconds, `per_s * (t + BURST_S)` at most are planned, and
    `per_s * (t + 1)` while each batch takes all that there is.

    It pickles before its first use. Times are seconds of `clock`.
    """

    def __init__(self, per_s: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._clock = clock
        self._at_s: float | None = None  # when the bucket was last filled
        self._tokens = _WHOLE_S * per_s  # below 0 after a batch that had to be larger

    def wait_s(self, lag: int) -> float:
        """How long a batch of up to `lag` offsets has to wait: until a second's allowance is there, or all of it."""
        self._fill()
        return max(0.0, (min(lag, _WHOLE_S * self._per_s) - self._tokens) / self._per_s)

    def offsets_max(self) -> int:
        """How many may be planned now."""
        self._fill()
        return max(0, int(self._tokens))

    def take(self, planned: int, left: int) -> None:
        """A batch of `planned` offsets begins, and `left` stay for later ones."""
        self._tokens -= planned
        if left <= 0:
            self._tokens = min(self._tokens, _WHOLE_S * self._per_s)

    def _fill(self) -> None:
        now_s = self._clock()
        if self._at_s is not None:
            self._tokens = min(self._tokens + (now_s - self._at_s) * self._per_s, BURST_S * self._per_s)
        self._at_s = now_s


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
