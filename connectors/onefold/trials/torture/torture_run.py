"""The torture from start to end: servers, rounds of faults and audits, one table."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import psycopg
from rich.console import Console
from rich.live import Live

from onefold.clients.sql.url import shown
from onefold.report.page import page
from onefold.sinks import PostgresSink
from onefold.trials.heartbeat import heartbeat, said_of
from onefold.trials.torture.audit import Auditor
from onefold.trials.torture.destinations.destination import SERVER_ERRORS
from onefold.trials.torture.fault_plan import PlannedFault, faults
from onefold.trials.torture.history import HistoryLog
from onefold.trials.torture.strikes.dispatch import strike
from onefold.trials.torture.strikes.strike import Missed
from onefold.trials.torture.supervisor import Supervisor
from onefold.trials.torture.torture_servers import TortureServers
from onefold.trials.torture.torture_settings import BOTH, ENGINE, PIPELINE, TortureSettings, spark_settings
from onefold.trials.torture.torture_world import TortureWorld
from onefold.trials.torture.verdict_table import TortureTally, live_table, print_report, report
from onefold.trials.torture.watcher import Watcher
from onefold.trials.workload.run_setup import clear, create_topic, interrupted_once, progress_bar, report_file
from onefold.trials.workload.workload_settings import INTO_HBASE, INTO_KAFKA, TABLE, TOPIC, Job

FIRST_EPOCH_S_MAX = 600.0  # on a machine that many share
EPOCH_S_MAX = 60.0
WORKERS = (2, 3)  # of a flow, in turns: each start shares its state out anew
# In the driver's log, by what they are signs of: on Spark, and on the engine.
_RETRIES = {
    "tasks retried or given up": re.compile(r" TaskSetManager: .*Lost task "),
    "of these, fetches that failed": re.compile(r" TaskSetManager: .*Lost task .*FetchFailed"),
    "executors lost": re.compile(r" TaskSchedulerImpl: .*Lost executor "),
}
_RESTARTS = {"workers started again": re.compile(r" the workers start again in | starts again in ")}
_SIGNS = {ENGINE: _RESTARTS, "spark": _RETRIES, BOTH: _RETRIES | _RESTARTS}


def run_torture(settings: TortureSettings, console: Console) -> bool:
    """Run it all. True if every audit was exact and nothing unexpected ended. Stops what it started."""
    directory = settings.directory.absolute()
    file = report_file(directory, settings.html)
    with interrupted_once() as cleanup:
        servers = TortureServers.of(settings, directory, cleanup)
        clear(directory, *(server for server in servers.all if server is not servers.cluster))
        with progress_bar(console) as progress, heartbeat(console, lambda: said_of(progress)):
            servers.start(progress)
        create_topic(servers.kafka.bootstrap_servers)
        where = f"Kafka at {servers.kafka.bootstrap_servers}, "
        where += f"Postgres at {shown(servers.postgres.url)}, " if servers.postgres else ""
        where += f"HBase at {servers.hbase.servers}, " if servers.hbase else ""
        console.print(f"{where}everything in {directory}", soft_wrap=True)
        world = _world(settings, directory, servers)
        cleanup.callback(world.history.close)
        cleanup.callback(world.close)
        tally = TortureTally(settings)
        live = Live(console=console, get_renderable=lambda: live_table(tally), transient=True)
        with live if console.is_terminal else heartbeat(console, tally.told):
            failure = _rounds(world, tally, console)
        world.close()
        complaints = [*world.supervisor.complaints, *([failure] if failure else [])]
        exact = tally.is_exact and not complaints
        world.history.write("end", faults=dict(tally.faults), rounds=len(tally.audits), exact=exact)
        retries = _signs(directory / "logs", _SIGNS[settings.runtime])
        seconds = world.history.seconds
        print_report(console, tally, world.supervisor.exits, complaints, retries, seconds, directory)
        told = report(
            tally, exact, complaints, world.watcher.records.values(), world.job.store_url(), world.history.path
        )
        console.print(file.write(page(told)), soft_wrap=True, highlight=False, markup=False)
        return exact


def _world(settings: TortureSettings, directory: Path, servers: TortureServers) -> TortureWorld:
    postgres, cluster, begins_on_engine = servers.postgres, servers.cluster, settings.on_engine or settings.moves
    job = Job(
        bootstrap_servers=servers.kafka.bootstrap_servers,
        postgres_url=postgres.url if postgres else "",
        checkpoint=str(directory / "checkpoint") if begins_on_engine else (directory / "checkpoint").as_uri(),
        directory=str(directory),
        deliveries=settings.deliveries,
        rows_per_batch=settings.orders_per_s * 10,
        exactly_once=True,
        pipeline=PIPELINE,
        continuous=True,
        shuffled=True,
        spark=spark_settings(settings.on_cluster),
        mode=settings.mode,
        bad_rows=settings.bad_rows,
        dead_letters=settings.dead_letters,
        store=_store(settings, directory, servers),
        hbase_servers=servers.hbase.servers if servers.hbase else "",
        windows=settings.has_windows,
        only_totals=settings.has_hops,
        workers=WORKERS[0] if begins_on_engine else 0,
        state=settings.state,
        mechanism=settings.mechanism,
        alignment=settings.alignment,
    )
    history = HistoryLog(directory / "history.jsonl")
    watcher = Watcher(job, history)
    auditor = Auditor(job, watcher)
    history.write(
        "run",
        mode=settings.mode,
        deliveries=settings.deliveries,
        bad_rows=settings.bad_rows,
        dead_letters=settings.dead_letters,
        runtime=settings.runtime,
        master=None if begins_on_engine else settings.master,
        state=settings.state if begins_on_engine else None,
        mechanism=settings.mechanism,
        alignment=settings.alignment,
        servers=settings.servers,
        seed=settings.seed,
        topic=TOPIC,
        destinations=[destination.name for destination in auditor.destinations],
        pipeline=PIPELINE,
        store=shown(job.store_url()),
        kafka=job.bootstrap_servers,
    )
    for destination in auditor.destinations:
        destination.create()
    forms = deque(_forms(settings, job, directory, cluster.url if cluster else None))
    supervisor = Supervisor(forms[0], history)
    return TortureWorld(settings, job, servers, history, supervisor, forms, watcher, auditor)


def _forms(settings: TortureSettings, job: Job, directory: Path, cluster: str | None) -> Iterator[tuple[Job, ...]]:
    """What the pipeline is in turns, each of them jobs that its processes take in turns."""
    if settings.moves:
        yield (replace(job, workers=WORKERS[0], state="memory"),)
    if settings.on_engine:
        yield tuple(replace(job, workers=workers) for workers in WORKERS[: 1 if settings.keeps_workers else None])
    else:
        masters = (cluster,) if cluster else ("local[2,4]", "local[2]")
        of = replace(job, workers=0, checkpoint=(directory / "on-spark").as_uri()) if settings.moves else job
        yield tuple(replace(of, master=master) for master in masters)
    if settings.moves:
        yield (replace(job, workers=WORKERS[1], state="rocksdb"),)


def _store(settings: TortureSettings, directory: Path, servers: TortureServers) -> str | None:
    """Where the checkpoint store is; None: in the sink's own database."""
    if not {*settings.deliveries} <= {*INTO_KAFKA, *INTO_HBASE}:
        return None
    if servers.postgres is None:
        return f"sqlite:///{directory / 'store.db'}"
    return PostgresSink(servers.postgres.url, table=TABLE).store_url()


def _rounds(world: TortureWorld, tally: TortureTally, console: Console) -> str | None:
    """Round after round, until there were enough faults or a round was not exact. Returns what went wrong, if so."""
    settings = world.settings
    deadline_s = time.monotonic() + settings.minutes * 60 if settings.minutes else None
    plan = faults(
        settings.seed,
        settings.struck,
        settings.on_cluster,
        settings.in_containers,
        runtime=settings.runtime,
        protections=(settings.mechanism, settings.alignment),
    )
    try:
        for number in count(1):
            tally.round, world.producing = number, True
            tally.doing = "waiting for an epoch"
            complete = world.watcher.complete
            if not world.wait_until(partial(_is_beyond, world, complete), FIRST_EPOCH_S_MAX):
                return f"no epoch was completed in {FIRST_EPOCH_S_MAX:.0f} s, at the beginning of round {number}"
            wanted = settings.faults_per_round
            if deadline_s is None:
                wanted = min(wanted, settings.faults - tally.total)
            for _ in range(4 * wanted):
                if wanted <= 0 or (deadline_s is not None and time.monotonic() > deadline_s):
                    break  # before a fault is drawn: each kind is to come once before any comes twice
                wanted -= _one_fault(world, next(plan), tally, console)
            tally.doing = "coming to rest"
            audit = world.rest(number)
            tally.audits.append(audit)
            figures = ", ".join(f"{name} {value}" for name, value in audit.figures().items())
            console.print(f"{_clock(world)} round {number} {'exact' if audit.is_exact else 'NOT EXACT'}: {figures}")
            if not audit.is_exact:
                return None
            if tally.total >= settings.faults if deadline_s is None else time.monotonic() > deadline_s:
                return None
    except SERVER_ERRORS as error:  # the run ends, but says where to look
        return f"{type(error).__name__} in round {tally.round}, {tally.doing}: {error}"
    raise AssertionError("count has no end")


def _is_beyond(world: TortureWorld, epoch: int) -> bool:
    return world.watcher.complete > epoch


def _one_fault(world: TortureWorld, fault: PlannedFault, tally: TortureTally, console: Console) -> int:
    """1 if it struck, 0 if there was nothing to strike."""
    complete = world.watcher.complete
    tally.doing = f"{fault.kind.value}, soon"
    if fault.after_epoch:
        world.wait_until(lambda: world.watcher.complete > complete, EPOCH_S_MAX)
    world.wait(fault.delay_s)
    tally.doing = fault.kind.value
    told = {"kind": fault.kind.value, "round": tally.round}

    def struck(target: str, pid: int | None) -> None:
        tally.faults[fault.kind.value] += 1
        world.history.write("fault", number=tally.total, **told, target=target, pid=pid, detail=fault.place or "")
        console.print(f"{_clock(world)} {tally.total:>4} {fault.kind.value}: {target}", highlight=False)

    before = tally.total
    try:
        detail = strike(world, fault, struck)
    except (Missed, psycopg.Error) as error:
        if tally.total > before:
            raise
        tally.missed[fault.kind.value] += 1
        world.history.write("missed", **told, detail=str(error))
        return 0
    if detail:
        world.history.write("over", number=tally.total, kind=fault.kind.value, detail=detail)
    return tally.total - before


def _signs(logs: Path, signs: Mapping[str, re.Pattern[str]]) -> dict[str, int]:
    """How many lines of the drivers' logs have each of them."""
    found = dict.fromkeys(signs, 0)
    for line in _lines(logs):
        for name, sign in signs.items():
            found[name] += bool(sign.search(line))
    return found


def _lines(logs: Path) -> Iterator[str]:
    for log in sorted(logs.glob("job-*.log")):
        with log.open(errors="replace") as file:
            yield from file


def _clock(world: TortureWorld) -> str:
    minutes, seconds = divmod(int(world.history.seconds), 60)
    return f"{minutes:>3}:{seconds:02d}"
