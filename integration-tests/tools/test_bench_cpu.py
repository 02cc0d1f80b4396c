"""What bench/ counts as CPU time."""

from __future__ import annotations

import os
import subprocess
import sys

from harness.support import wait_until

from bench.cpu import cpu_s, server_cpu_s
from bench.peers import us_a_row

BURN = "import time\nend = time.process_time() + 0.8\nwhile time.process_time() < end: pass"
A_CHILD_THAT_NOBODY_WAITS_FOR = f"""
import signal, subprocess, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel then adds an ended child's time to nobody's
child = subprocess.Popen([sys.executable, "-c", {BURN!r}])
sys.stdin.read()
"""


def test_the_time_of_a_process_counts_on_once_it_has_ended() -> None:
    before_s = cpu_s(os.getpid())
    with subprocess.Popen([sys.executable, "-c", A_CHILD_THAT_NOBODY_WAITS_FOR], stdin=subprocess.PIPE) as parent:
        read_s = [before_s]

        def is_seen() -> bool:
            read_s.append(cpu_s(os.getpid()))
            return read_s[-1] - before_s > 0.5

        wait_until(is_seen, "the child's work")
        parent.communicate()
    read_s.append(cpu_s(os.getpid()))
    assert read_s == sorted(read_s)


def test_the_time_of_a_server_is_that_of_its_processes_too_that_have_ended() -> None:
    before_s = server_cpu_s(os.getpid())
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert 0.75 <= server_cpu_s(os.getpid()) - before_s < 10


def test_what_start_and_end_take_is_off_the_time_of_a_row() -> None:
    assert us_a_row(1_000_000, [(10.0, 13.0)]) == 3.0


def test_a_time_of_all_records_that_start_and_end_nearly_take_is_none_of_a_row() -> None:
    assert us_a_row(1_000_000, [(10.0, 12.0), (10.0, 9.0)]) is None
