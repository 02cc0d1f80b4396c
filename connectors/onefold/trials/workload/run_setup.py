"""The care of a run's own servers: nothing of earlier runs, progress for people, and an end also when interrupted."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from onefold.core.errors import OnefoldError
from onefold.local import HBaseServer, LocalServer
from onefold.report.report_file import ReportFile
from onefold.trials.workload.workload_settings import PARTITIONS, TOPIC


class WorkloadFailed(OnefoldError):
    """A run could not do what it set out to do; says where to look."""


def clear(directory: Path, *servers: LocalServer | HBaseServer) -> None:
    """Begin anew: what an earlier run left is removed, unless its servers are in use."""
    running = [server.name for server in servers if server.status().running]
    if running:
        raise WorkloadFailed(
            "earlier-run-still-up",
            f"{' and '.join(running)} of an earlier run still run in {directory}: stop them with"
            f" `onefold local down --dir {directory / 'servers'}`",
        )
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "logs").mkdir(parents=True)


def report_file(directory: Path, html: Path | None) -> ReportFile:
    """Of a run in that directory, which is made. Raises ConfigError, before anything is cleared or started."""
    directory.mkdir(parents=True, exist_ok=True)
    return ReportFile(html or directory / "report.html")


def create_topic(bootstrap_servers: str, name: str = TOPIC, partitions: int = PARTITIONS) -> None:
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1)
    # Held in a variable: a client that nobody holds ends before it answers.
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": "3"})
    admin.create_topics([topic])[name].result(30)


def progress_bar(console: Console) -> Progress:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console)


@contextmanager
def interrupted_once() -> Iterator[ExitStack]:
    """For what ends the servers and processes of a run. SIGTERM interrupts the run like Ctrl-C; once it is ending, by
    itself too, neither stops that: processes would live on."""
    is_ending = False

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_ending
        if is_ending:
            with suppress(OSError):  # nobody reads it any more: of all things, saying so must not stop the ending
                os.write(2, b"still ending what was started; nothing of it is left when this ends\n")
            return
        is_ending = True
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with ExitStack() as cleanup:
            try:
                yield cleanup
            finally:
                is_ending = True
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
