"""A flow with keyed state that ends after one epoch, for tests of what it leaves in its folders."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from onefold.engine import Restart
from onefold.flow import Flow, count
from onefold.sinks import SqlSink
from onefold.sources import FileSource

__all__ = ["run_totals"]


def run_totals(read: Path, own: Path, checkpoint: str, backend: str, *, in_columns: bool = True) -> None:
    """One epoch of the files in `read`, with state in columns or in entries. With RocksDB it runs in a process of its
    own: its threads outlive no fork, and the one that runs the tests may have used it before."""
    if backend == "memory":
        _run(read, own, checkpoint, backend, in_columns)
        return
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(_run, read, own, checkpoint, backend, in_columns).result(timeout=120)


def _run(read: Path, own: Path, checkpoint: str, backend: str, in_columns: bool) -> None:
    flow = Flow("totals")
    taken = flow.source(FileSource(str(read), format="json", schema="id long, account long", name="in"), uid="in")
    keyed = taken.key_by("account")
    if in_columns:
        totals = keyed.aggregate(uid="totals", orders=count())
    else:
        totals = keyed.reduce(lambda _, later: later, uid="totals")
    totals.sink(SqlSink(f"sqlite:///{own}/rows.db", "totals", mode="upsert", key="account", order="onefold_epoch"))
    flow.run(
        checkpoint=checkpoint,
        state=backend,  # type: ignore[arg-type]
        restart=Restart(strategy="none"),
        patience_s=5.0,
        on_outcome=lambda _: os.kill(os.getpid(), signal.SIGTERM),
    )
