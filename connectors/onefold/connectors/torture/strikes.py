"""How each kind of fault is done to the real thing. Only processes that the run itself started are signalled."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg

from onefold.connectors.torture.plan import Fault, Kind
from onefold.connectors.torture.settings import HEARTBEAT_LOST_S
from onefold.connectors.torture.targets import Role, Target, children, find
from onefold.connectors.torture.world import World
from onefold.local.process import ProcessRef

__all__ = ["Missed", "Struck", "strike"]

FIND_S_MAX = 40.0  # a driver may just be starting
PLACE_S_MAX = 60.0
SUCCESSOR_S_MAX = 90.0
SHUFFLE_S_MAX = 15.0
SHUFFLE_S = 1.5  # how long files are deleted as soon as they appear
Struck = Callable[[str, int | None], None]  # told of the target and its pid at the moment of the fault


class Missed(Exception):
    """There was nothing to strike; says why."""


def strike(world: World, fault: Fault, struck: Struck) -> str:
    """Do it, and wait until it is over. Returns what else is to be said of it. Raises Missed."""
    return _STRIKES[fault.kind](world, fault, struck)


def _kill_driver(world: World, _fault: Fault, struck: Struck) -> str:
    process = world.supervisor.current
    if process is None:
        raise Missed("no process of the pipeline runs")
    struck(f"process {process.number}", process.pid)
    world.supervisor.kill()
    return ""


def _kill_half(world: World, fault: Fault, struck: Struck) -> str:
    process = world.supervisor.current
    machines = find([process.pid], Role.DRIVER_JVM) if process else []
    if process is None or not machines:
        raise Missed("no driver runs yet")
    python = ProcessRef.of(process.pid)
    victim, name = (machines[0].process, "JVM") if fault.choice < 0.5 else (python, "Python process")
    if victim is None:
        raise Missed("it had just ended")
    world.supervisor.leave_half(process)
    struck(f"process {process.number}, its {name}", victim.pid)
    victim.signal(signal.SIGKILL)
    if not world.wait_until(lambda: world.supervisor.current is not process, 20):
        world.supervisor.kill()
        return "the other half had to be killed too"
    return ""


def _kill_at(world: World, fault: Fault, struck: Struck) -> str:
    world.supervisor.kill()
    process = world.supervisor.start(fault.place)
    world.supervisor.struck(process)
    try:
        reached = world.wait_until(lambda: process.is_held() or process.exit_status is not None, PLACE_S_MAX)
        if not reached or process.exit_status is not None:
            raise Missed(f"{fault.place} was not reached")
        struck(f"process {process.number} at {fault.place}", process.pid)
    finally:
        if world.supervisor.current is process:
            world.supervisor.kill()
    return ""


def _pause_driver(world: World, fault: Fault, struck: Struck) -> str:
    process = world.supervisor.current
    if process is None:
        raise Missed("no process of the pipeline runs")
    world.supervisor.struck(process)
    struck(f"process {process.number}", process.pid)
    process.pause()
    world.wait(fault.hold_s)
    process.wake()
    return f"woken after {fault.hold_s} s"


def _zombie(world: World, fault: Fault, struck: Struck) -> str:
    process, supervisor = world.supervisor.current, world.supervisor
    if process is None:
        raise Missed("no process of the pipeline runs")
    struck(f"process {process.number}", process.pid)
    process.pause()
    supervisor.make_zombie(process)
    before = world.watcher.complete
    went_on = world.wait_until(lambda: world.watcher.complete > before, SUCCESSOR_S_MAX)
    world.wait(fault.hold_s / 4)
    process.wake()
    if not went_on:
        return "woken before its successor had completed an epoch"
    return "woken beside its successor"


def _one(world: World, fault: Fault, role: Role, where: str) -> Target:
    sessions = world.supervisor.sessions + world.executor_sessions if where == "all" else world.executor_sessions
    found: list[Target] = []

    def some() -> bool:
        found[:] = find(sessions, role)
        return bool(found)

    if not world.wait_until(some, FIND_S_MAX):
        raise Missed(f"no {role.value} runs")
    return found[int(fault.choice * len(found))]


def _kill_worker(world: World, fault: Fault, struck: Struck) -> str:
    target = _one(world, fault, Role.WORKER, "all")
    struck(f"Python worker ({target.command})", target.process.pid)
    target.process.signal(signal.SIGKILL)
    return ""


def _hold(world: World, processes: list[ProcessRef], hold_s: float) -> None:
    for process in processes:
        process.signal(signal.SIGSTOP)
    try:
        world.wait(hold_s)
    finally:
        for process in processes:
            process.signal(signal.SIGCONT)


def _pause_worker(world: World, fault: Fault, struck: Struck) -> str:
    target = _one(world, fault, Role.WORKER, "all")
    struck(f"Python worker ({target.command})", target.process.pid)
    _hold(world, [target.process], fault.hold_s)
    return f"woken after {fault.hold_s} s"


def _kill_executor(world: World, fault: Fault, struck: Struck) -> str:
    target = _one(world, fault, Role.EXECUTOR, "executors")
    struck("executor", target.process.pid)
    target.process.signal(signal.SIGKILL)
    return ""


def _pause_executor(world: World, fault: Fault, struck: Struck) -> str:
    target = _one(world, fault, Role.EXECUTOR, "executors")
    struck("executor and its Python workers", target.process.pid)
    _hold(world, [target.process, *children(target.process)], fault.hold_s)
    return f"woken after {fault.hold_s} s"


def _cut_executor(world: World, fault: Fault, struck: Struck) -> str:
    """Only the JVM is held: its Python workers go on with what they have got, and so does it once it wakes."""
    target = _one(world, fault, Role.EXECUTOR, "executors")
    struck("executor, without its Python workers", target.process.pid)
    hold_s = HEARTBEAT_LOST_S + 2.0 + fault.hold_s
    _hold(world, [target.process], hold_s)
    return f"given up by Spark meanwhile, woken after {hold_s:.1f} s"


def _orphan(world: World, fault: Fault, struck: Struck) -> str:
    workers: list[ProcessRef] = []

    def some() -> bool:
        busy = {target.process for target in find(world.executor_sessions, Role.WORKER)}
        workers[:] = [process for process in children(target.process) if process in busy]
        return bool(workers)

    target = _one(world, fault, Role.EXECUTOR, "executors")
    if not world.wait_until(some, FIND_S_MAX):
        raise Missed("the executor has no Python workers")
    struck(f"executor, its {len(workers)} Python workers paused before", target.process.pid)
    for worker in workers:
        worker.signal(signal.SIGSTOP)
    target.process.signal(signal.SIGKILL)
    before = world.watcher.complete
    world.wait_until(lambda: world.watcher.complete > before, SUCCESSOR_S_MAX)
    alive = sum(worker.alive() for worker in workers)
    for worker in workers:
        worker.signal(signal.SIGCONT)
    return f"{alive} of {len(workers)} workers woken after the next epoch was complete"


def _kill_postgres(world: World, fault: Fault, struck: Struck) -> str:
    struck("Postgres", world.postgres.status().pid)
    world.postgres.kill()
    world.wait(fault.hold_s / 2)
    world.postgres.start()
    return "started again"


def _kill_kafka(world: World, fault: Fault, struck: Struck) -> str:
    struck("Kafka", world.kafka.status().pid)
    world.kafka.kill()
    world.wait(fault.hold_s / 2)
    world.kafka.start()
    return "started again"


def _kill_producer(world: World, _fault: Fault, struck: Struck) -> str:
    producer = world.producer
    if producer is None or producer.exit_status is not None:
        raise Missed("no producer runs")
    struck("producer", producer.pid)
    producer.kill()
    return ""


_BACKENDS = """
SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
AND backend_type = 'client backend' AND application_name <> 'torture' ORDER BY state = 'active' DESC, pid
"""


def _end_backends(world: World, fault: Fault, struck: Struck) -> str:
    with closing(_connect(world)) as connection:
        found: list[int] = []
        deadline_s = time.monotonic() + FIND_S_MAX
        while not found and time.monotonic() < deadline_s:
            found = [pid for (pid,) in connection.execute(_BACKENDS)]
            world.tick()
        if not found:
            raise Missed("nobody is connected to Postgres")
        chosen = found if fault.choice < 0.5 else [found[int(fault.choice * len(found))]]
        struck(f"{len(chosen)} of {len(found)} backends", chosen[0])
        connection.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) pid", (chosen,))
    return ""


def _take_slots(world: World, fault: Fault, struck: Struck) -> str:
    taken: list[str] = []
    try:
        with closing(_connect(world)) as connection:
            while True:
                gid = f"somebody-else/{len(taken)}"
                try:
                    connection.execute(b"BEGIN; SELECT pg_current_xact_id()")
                    connection.execute(f"PREPARE TRANSACTION '{gid}'".encode())
                except psycopg.errors.OutOfMemory:  # 53200: maximum number of prepared transactions reached
                    break
                taken.append(gid)
        struck(f"all {len(taken)} free slots", None)
        world.wait(fault.hold_s)
    finally:
        with closing(_connect(world)) as connection:
            for gid in taken:
                connection.execute(f"ROLLBACK PREPARED '{gid}'".encode())
    return f"given back after {fault.hold_s} s"


def _lose_shuffle(world: World, _fault: Fault, struck: Struck) -> str:
    """Delete shuffle files as they appear, before anybody fetches them, if we are quick enough."""
    deadline_s, deleted, until_s = time.monotonic() + SHUFFLE_S_MAX, 0, None
    known = set(_shuffles(world.scratch))  # the older ones were fetched already
    while time.monotonic() < (until_s or deadline_s):
        for path in set(_shuffles(world.scratch)) - known:
            path.unlink(missing_ok=True)
            known.add(path)
            deleted += 1
            if until_s is None:
                struck("shuffle files", None)
                until_s = time.monotonic() + SHUFFLE_S
        world.tick()
    if not deleted:
        raise Missed("no shuffle file appeared")
    return f"{deleted} files deleted"


def _shuffles(roots: list[Path]) -> list[Path]:
    found: list[Path] = []
    for root in roots:
        try:
            found += root.glob("**/blockmgr-*/??/shuffle_*.data")
        except OSError:
            continue  # a folder went while we looked
    return found


def _connect(world: World) -> psycopg.Connection[tuple[int]]:
    return psycopg.connect(world.job.postgres_url, autocommit=True, application_name="torture", connect_timeout=5)


_STRIKES: dict[Kind, Callable[[World, Fault, Struck], str]] = {
    Kind.KILL_DRIVER: _kill_driver,
    Kind.KILL_DRIVER_HALF: _kill_half,
    Kind.KILL_DRIVER_AT: _kill_at,
    Kind.PAUSE_DRIVER: _pause_driver,
    Kind.ZOMBIE_DRIVER: _zombie,
    Kind.KILL_WORKER: _kill_worker,
    Kind.PAUSE_WORKER: _pause_worker,
    Kind.KILL_EXECUTOR: _kill_executor,
    Kind.PAUSE_EXECUTOR: _pause_executor,
    Kind.CUT_EXECUTOR: _cut_executor,
    Kind.ORPHAN_WORKER: _orphan,
    Kind.KILL_POSTGRES: _kill_postgres,
    Kind.KILL_KAFKA: _kill_kafka,
    Kind.KILL_PRODUCER: _kill_producer,
    Kind.END_BACKENDS: _end_backends,
    Kind.LOSE_SHUFFLE: _lose_shuffle,
    Kind.TAKE_SLOTS: _take_slots,
}
assert _STRIKES.keys() == set(Kind)
