"""`onefold.engine.run`: from a flow's graph to its end, in this process and its workers."""

from __future__ import annotations

import importlib
import logging
import resource
import socket
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy  # noqa: F401  # for the workers: where it is missing, the start says so

from onefold.core.errors import ConfigError
from onefold.core.extras import uncollected
from onefold.core.protocol.patience import PATIENCE_S
from onefold.core.restart import Restart
from onefold.core.values.plain import counted, shown_url
from onefold.engine.dataflow.alignment import Alignment, alignment_of
from onefold.engine.dataflow.chains import Plan, plan
from onefold.engine.dataflow.progress_marks import Marks
from onefold.engine.driver.progress import Progress, moving_line
from onefold.engine.state import RETAIN, STATE
from onefold.engine.workers.fork_server import ForkServer
from onefold.flow.graph.nodes import Graph, Shipping
from onefold.flow.processing.mechanisms import AlignmentKind, Mechanism, has_snapshots
from onefold.store.job.logs import showing_progress

if TYPE_CHECKING:
    from onefold.core.protocol.epoch import Outcome, Started
    from onefold.engine.driver.flow_run import FlowRun

log = logging.getLogger("onefold")

WORKERS_MAX = 64
FILES_OWN = 256  # of clients, and whatever else this process has open
STATES = ("memory", "rocksdb")
RESTART = Restart(strategy="fixed_delay", attempts=3)


def run(
    graph: Graph,
    *,
    checkpoint: str | Path,
    workers: int = 1,
    store: str | None = None,
    state: Literal["memory", "rocksdb"] = "memory",
    mechanism: Mechanism = "barriers",
    epoch_interval_s: float = 0.0,
    alignment: AlignmentKind = "aligned",
    alignment_timeout_s: float | None = None,
    restart: Restart = RESTART,
    retain: int = RETAIN,
    patience_s: float = PATIENCE_S,
    on_outcome: Callable[[Outcome], None] | None = None,
    on_opened: Callable[[FlowRun], None] | None = None,
) -> Progress:
    """Run a flow until its sources end, or SIGTERM or Ctrl-C asks it to: then it ends with the epoch that it is at.

    What it logs (its start, rows a second, restarts, its end) goes to stderr, unless logging is configured.

    checkpoint       the folder, or URL, where the flow's state is kept
    workers          how many processes run it, besides this one; each runs one subtask of every operator
    store            URL of the checkpoint store: by default the first sink's own database, else SQLite in `checkpoint`
    state            which backend keeps the state: "memory", or "rocksdb" for more than fits there
    mechanism        what protects records against crashes (docs/mechanisms.md); another one takes a new checkpoint
    epoch_interval_s the shortest time from the begin of an epoch to that of the next; 0: as soon as there is something
    alignment        how a subtask waits for the barriers of an epoch: "aligned"; "unaligned", barriers overtake what
                     waits in channels, which is stored with the epoch; "at_least_once", none is waited for, and after a
                     crash the records between two barriers count twice
    alignment_timeout_s  of "unaligned": how long a subtask aligns before barriers overtake; None: not at all
    restart          what becomes of the flow when a worker is lost, or a function raises: by default three restarts in
                     a row, one second apart
    retain           of how many epochs the state is kept
    patience_s       how long a server that is down is waited for, which is no restart
    on_outcome       a function that is called with the outcome of every epoch
    on_opened        a function that is called with the run before it starts: another thread may pause it, and end it

    Raises Fenced where another process has taken the flow over, Terminal where the restarts are used up, and what the
    sources and sinks raise.
    """
    check_runs_here(graph)
    if mechanism != "barriers":
        from onefold.flow.planning import check_mechanism  # with the store

        check_mechanism(graph, mechanism, state, str(checkpoint))
    cut = plan(graph, mechanism=mechanism)
    _check(graph, workers, state)
    aligning = alignment_of(alignment, alignment_timeout_s, mechanism)
    if state == "rocksdb" and graph.keeps_state:
        _check_unused(graph.flow)
    _allow_files(cut, workers, aligning)
    marks = Marks(workers, len(cut.streams), len(graph.nodes))
    with (
        showing_progress() as console,
        closing(
            ForkServer(partial(_work, cut, marks), partial(_warm, cut))
        ) as fork_server,  # before this process has a client
    ):
        log.info("flow %r starts: workers=%d, checkpoint %s", graph.flow, workers, shown_url(str(checkpoint)))
        with uncollected():  # the protocol and the store, while the fork server imports what workers need
            from onefold.engine.driver.flow_run import RunSettings
            from onefold.engine.driver.opening import opened

        settings = RunSettings(workers, state, epoch_interval_s, restart, on_outcome, aligning)
        with opened(cut, fork_server, marks, settings, str(checkpoint), store, retain, patience_s) as flow:
            if on_opened is not None:
                on_opened(flow)
            with moving_line(console, flow.progress, lambda: flow.state):
                progress = flow.run()
        done = counted(progress.rows, "row"), counted(progress.epochs, "epoch")
        log.info("flow %r has ended: %s in %s", graph.flow, *done)
        return progress


def recover(
    graph: Graph,
    *,
    checkpoint: str | Path,
    store: str | None = None,
    mechanism: Mechanism = "barriers",
    retain: int = RETAIN,
    patience_s: float = PATIENCE_S,
    adopt_ledger: bool = False,
    accept_damage: int | None = None,
    accept_targets: bool = False,
) -> Started:
    """Finish or undo what earlier drivers left, and fence them, without running the flow.

    `checkpoint`, `store` and `mechanism` are the flow's, as for `run`. The others are ways out that an error names;
    call with them once, then run the flow as usual.

    adopt_ledger   believe the destinations instead of the store, which was lost or is an older copy
    accept_damage  take this damaged epoch for complete, after you have written its missing rows by hand
    accept_targets go on with tables and topics that were dropped, or made anew, without the rows that they had
    """
    from onefold.engine.driver.opening import session_of  # with the store, as `run` has it
    from onefold.engine.driver.resume_point import check_same_mechanism
    from onefold.flow.planning import check_journals

    check_runs_here(graph)
    planned = plan(graph, mechanism=mechanism)
    with session_of(planned, str(checkpoint), store, retain, patience_s) as session:
        check_same_mechanism(session.facts(), mechanism)
        if STATE in session.names:
            from onefold.engine.state.participant import note_again  # only for state

            note_again(str(checkpoint), session.name, session.facts())
        if adopt_ledger:
            sources = [reading.source for _, reading in graph.readings()]
            session.patience.retry(
                lambda: check_journals(sources, session.ledgers(), session.journal), "reading the store"
            )
        return session.recover(adopt_ledger=adopt_ledger, accept_damage=accept_damage, accept_targets=accept_targets)


def check_runs_here(graph: Graph) -> None:
    """Raise ConfigError for an operator that the engine does not have."""
    if (found := graph.querying()) is not None:
        raise ConfigError(
            "only-on-spark",
            f"flow {graph.flow!r} has {found[0].name!r}, which only Spark runs: run it there, by flow.start(spark, ...)"
            ' or runtime = "spark" of its pipeline; or say the same with filter, select and aggregate, which run here'
            ", too",
        )


def _warm(plan: Plan) -> None:
    with uncollected():  # in the fork server alone: the driver has no use for operators and backends
        from onefold.engine.workers.worker_setup import warm

        warm(plan)


def _work(plan: Plan, marks: Marks, control: socket.socket, links: list[socket.socket]) -> None:
    if not has_snapshots(plan.mechanism):
        importlib.import_module(f"onefold.engine.mechanisms.{plan.mechanism}.worker").work(plan, marks, control, links)
        return
    from onefold.engine.workers.worker_setup import run_worker  # imported by then, see `_warm`

    run_worker(plan, marks, control, links)


def _allow_files(cut: Plan, workers: int, alignment: Alignment) -> None:
    """Raise this process's limit of open files where it is too low for the workers' sockets, all of which it has at
    once when it starts them. Raises ConfigError where it may not be so high."""
    exchanges = sum(exchange.edge.shipping is not Shipping.FORWARD for exchange in cut.exchanges) + alignment.overtakes
    needed = 2 * workers * (workers - 1) * exchanges + 2 * workers + FILES_OWN
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            "too-many-workers",
            f"workers={workers} take {needed} open files when they start, for {exchanges} exchanges between all of"
            f" them, and this process may have {hard}: take fewer, or raise the limit (ulimit -n, LimitNOFILE=)",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _check_unused(flow: str) -> None:
    """Raise ConfigError where this process has used RocksDB itself. Its threads are not in the workers that are forked
    from it, which would wait for them for ever. (Where the system shows no threads, nothing is seen.)"""
    with suppress(OSError):
        if any(name.read_text().startswith("rocksdb:") for name in Path("/proc/self/task").glob("*/comm")):
            raise ConfigError(
                "rocksdb-in-use",
                f"flow {flow!r} keeps its state in RocksDB, and this process has used RocksDB itself, whose threads are"
                " missing in the workers that are forked from it. Run the flow in a process of its own, or use RocksDB"
                " in another one",
            )


def _check(graph: Graph, workers: int, state: str) -> None:
    if not 1 <= workers <= min(WORKERS_MAX, graph.max_parallelism):
        raise ConfigError(
            "workers",
            f"workers={workers!r}: a flow has 1 to {WORKERS_MAX} workers, and no more than it has key groups"
            f" ({graph.max_parallelism})",
        )
    if state not in STATES:
        raise ConfigError("option-value", f"state={state!r}: the backends are {' and '.join(STATES)}")
