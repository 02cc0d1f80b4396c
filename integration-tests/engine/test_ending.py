"""A flow in a script, as it is started in a terminal and ended there with Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from harness.support import wait_until

from onefold.store.checkpoint_store import CheckpointStore

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SCRIPT = """
import sys
from lines_source import LinesSource
from onefold.flow import Flow
from onefold.sinks import SqlSink

folder = sys.argv[1]
flow = Flow("lines")
flow.source(LinesSource(f"{folder}/lines"), uid="lines").sink(SqlSink(f"sqlite:///{folder}/rows.db", "rows"))
flow.run(checkpoint=f"{folder}/checkpoint")
print("done")
"""


@contextmanager
def started(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The script in a process group of its own, which has written what there was."""
    (folder / "script.py").write_text(SCRIPT)
    (folder / "lines").write_text("".join(f"{number}\n" for number in range(20)))
    process = subprocess.Popen(
        [sys.executable, folder / "script.py", str(folder)],
        env=os.environ | {"PYTHONPATH": str(EXAMPLES)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        wait_until(lambda: written(folder) == 20 or process.poll() is not None, "writing what there is")
        yield process
    finally:
        process.kill()
        process.wait()


def written(folder: Path) -> int:
    if not (folder / "rows.db").exists():
        return 0
    with closing(CheckpointStore(f"sqlite:///{folder}/rows.db")) as store:
        return sum(record.rows for record in store.history("lines")) if store.look() is not None else 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_a_script_as_sigterm_does_and_it_says_what_it_did(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path) as process:
        os.killpg(process.pid, number)  # as a terminal does: workers and fork server get it, too
        out, said = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "done\n"), said
    assert "Traceback" not in said and "KeyboardInterrupt" not in said, said
    for line in (
        "INFO flow 'lines' starts: workers=1",
        "generation 1",
        "epoch",
        "INFO flow 'lines' has ended: 20 rows",
    ):
        assert line in said, said


def test_a_second_ctrl_c_interrupts(tmp_path: Path) -> None:
    slow = SCRIPT.replace(".sink(", ".map_batches(stuck).sink(", 1).replace(
        "folder =",
        "import time\nfrom pathlib import Path\n"
        "def stuck(batch):\n"
        "    if batch.num_rows:\n"
        "        Path(folder, 'stuck').touch()\n"
        "        time.sleep(600)\n"
        "    return batch\n"
        "folder =",
    )
    (tmp_path / "slow.py").write_text(slow)
    (tmp_path / "lines").write_text("1\n")
    process = subprocess.Popen(
        [sys.executable, tmp_path / "slow.py", str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(EXAMPLES)},
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        wait_until((tmp_path / "stuck").exists, "reading the first record")
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode != 0 and "KeyboardInterrupt" in said
    finally:
        process.kill()
        process.wait()
