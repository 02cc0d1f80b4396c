"""What happened, one JSON object a line, in the order in which it was seen.

Every line has `time` (UTC, ISO 8601), `seconds` (since the start of the run) and `event`; the other fields by event:

    run      mode, deliveries, bad_rows, dead_letters, runtime, master (null on the engine), state (null on Spark),
             servers, seed, topic, destinations, pipeline, store, kafka: the first line
    start    process, pid, place: a process of the pipeline; `place` is the failpoint that it is armed with, or null
    exit     process, pid, status, role ("current" or "zombie"): it ended; a negative status is a signal's number
    fault    number, round, kind, target, pid, detail: a fault has struck; `pid` of what was signalled, or null
    over     number, kind, detail: a fault that lasted is over (woken, started again, given back)
    missed   round, kind, detail: a fault that found nothing to strike; it is not counted
    epoch    epoch, generation, state, rows, start, end: an epoch was seen in this state for the first time. Looked at
             about every half second and at rest, so states that pass quickly are passed over, never reordered
    rest     round, seconds_to_rest, epoch, positions: the pipeline has come to rest
    audit    round, records, rows, dead (dead letters), lost, duplicated, changed, unexpected, in_doubt, stage_rows,
             unnamed_files (of a flow's state), observations (how often a reader's snapshot of table and epochs was
             taken; staged only), verdicts (invariant -> violations; into topics also key-order), exact
    end      faults (kind -> how often), rounds, exact: the last line

Another checker needs nothing else than this, the topic, the destinations and `onefold_epochs` in the store.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path


class HistoryLog:
    """Writes each line at once, so that nothing is missing when the run itself is killed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("a", buffering=1)
        self._began_s = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return time.monotonic() - self._began_s

    def write(self, event: str, **what: object) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"time": now, "seconds": round(self.seconds, 3), "event": event, **what}
        self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        self._file.close()
