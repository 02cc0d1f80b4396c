"""What comes of a contestant's rounds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.compare.audit import Audit

__all__ = ["Fast", "Lived", "percentile"]


@dataclass(frozen=True)
class Fast:
    """As fast as it goes: records a second, and CPU microseconds a record, the servers' included; without start and
    end. None where the records make too little of it to tell."""

    rows_per_s: float | None
    cpu_us: float | None
    audit: Audit


@dataclass(frozen=True)
class Lived:
    """A round of records that come at a steady rate.

    `seen` has of each record, in seconds since the first: when it was given to the producer, and when its row was seen.
    `killed_s` are the times of kills, `recovered_s` how long each took until every partition had a newer row.
    `written_bytes` are those of the contestant's processes and of Postgres' WAL.
    """

    seen: Sequence[tuple[float, float]]
    written_bytes: int
    audit: Audit
    killed_s: Sequence[float] = ()
    recovered_s: Sequence[float] = field(default_factory=list)

    def latency_ms(self, q: float) -> float:
        return percentile([(seen_s - sent_s) * 1000 for sent_s, seen_s in self.seen], q)

    @property
    def bytes_a_record(self) -> float:
        return self.written_bytes / len(self.seen)

    def slowest(self, every_s: float) -> list[tuple[float, float]]:
        """Of each stretch of time, the longest latency of a record that was sent in it, in milliseconds."""
        found: dict[int, float] = {}
        for sent_s, seen_s in self.seen:
            at = int(sent_s / every_s)
            found[at] = max(found.get(at, 0.0), (seen_s - sent_s) * 1000)
        return [(at * every_s, ms) for at, ms in sorted(found.items())]

    @property
    def recovery_median_s(self) -> float:
        return statistics.median(self.recovered_s)


def percentile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least a share `q` of all do not exceed."""
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]
