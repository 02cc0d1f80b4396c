"""What must happen between the crash of a one-node Kafka and its next start.

A controller that starts takes the killed broker for alive until its session ends. A broker that starts beside it loads
the transaction coordinator at once, from metadata in which it still leads every partition. When the session then ends,
all partitions lose their leader for a moment, and a coordinator that finds none for the markers of a decided
transaction drops the markers ("these partitions are likely deleted already and hence can be skipped"). The transaction
is complete, and yet its records stay invisible to read_committed readers: after 6 of 7 kills right after a commit on
50 partitions (Kafka 4.3.1, default settings). A cluster of several nodes hands the leadership over instead.

So the controller first runs alone, with a short session, until it has written down that the old broker is gone. The
broker then starts from metadata without leaders, and its coordinator loads when all leaders are there.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from onefold.local.process import ServerState, kill_tree, log_tail, spawn, wait_gone
from onefold.local.server_errors import LocalServerError

SESSION_MS = 300
TALKING = ("-Donefold.controller=debug",)  # the controller then says which events it has processed
_ACTIVE = re.compile(r"Performing controller activation")
# Only what follows the activation: before it, the controller reads what earlier lives had written.
# "fenced=1" is said when the record is about to be written, and the event is "processed" when it is: a controller that
# ends between the two has fenced nothing, and then none registers the new broker for its session of ten minutes.
_FENCED = re.compile(
    r"Performing controller activation.*Fencing broker \d+ at epoch.*fenced=1\b.*Processed \w*[fF]ence", re.DOTALL
)
_ACTIVE_S_MAX = 60.0
_FENCED_S_MAX = 15.0  # after a broker that was fenced already, nothing is written
_STOP_S_MAX = 20.0


def was_killed(data: Path) -> bool:
    """True if there are data of a broker that did not shut down in order."""
    return (data / "meta.properties").exists() and not (data / ".kafka_cleanshutdown").exists()


def fence_earlier_life(command: Sequence[str | Path], *, home: Path, log: Path, port: int) -> None:
    """Runs the controller alone (`command`) until the broker's earlier life is fenced in the metadata."""
    state_path = home / "recovery.json"
    before = ServerState.load(state_path)
    if before is not None and before.process is not None:
        kill_tree(before.process)  # left by a start that was killed itself
    seen = log.stat().st_size if log.exists() else 0
    controller = spawn(command, log=log, cwd=home)
    try:
        ServerState(port=port, log=str(log), process=controller).save(state_path)
        started = time.monotonic()
        active_at: float | None = None
        while True:
            with log.open("rb") as written:
                written.seek(seen)
                text = written.read().decode(errors="replace")
            now = time.monotonic()
            if active_at is None and _ACTIVE.search(text):
                active_at = now
            if _FENCED.search(text) or (active_at is not None and now - active_at > _FENCED_S_MAX):
                break
            if not controller.alive() or (active_at is None and now - started > _ACTIVE_S_MAX):
                raise LocalServerError(
                    "kafka-recovery-failed", f"kafka's controller did not recover from the crash; {log_tail(log)}"
                )
            time.sleep(0.05)
        controller.signal(signal.SIGTERM)
        wait_gone([controller], _STOP_S_MAX)
    finally:
        kill_tree(controller)
        state_path.unlink(missing_ok=True)
