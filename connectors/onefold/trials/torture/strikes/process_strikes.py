"""What is done to the pipeline's own processes: drivers, executors, Python workers."""

from __future__ import annotations

import signal

from onefold.local.process import ProcessRef, children
from onefold.trials.torture.fault_plan import PlannedFault
from onefold.trials.torture.strikes.strike import FIND_S_MAX, Missed, Struck, hold_at
from onefold.trials.torture.strikes.targets import Role, StrikeTarget, find
from onefold.trials.torture.torture_settings import HEARTBEAT_LOST_S
from onefold.trials.torture.torture_world import TortureWorld

SUCCESSOR_S_MAX = 90.0


def kill_driver(world: TortureWorld, _fault: PlannedFault, struck: Struck) -> str:
    process = world.supervisor.current
    if process is None:
        raise Missed("no process of the pipeline runs")
    struck(f"process {process.number}", process.pid)
    world.supervisor.kill()
    return ""


def kill_half(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
    process = world.supervisor.current
    others = find([process.pid], Role.DRIVER_JVM, Role.FORK_SERVER) if process else []
    if process is None or not others:
        raise Missed("no driver runs yet")
    python = ProcessRef.of(process.pid)
    victim, name = (others[0].process, others[0].role.value) if fault.choice < 0.5 else (python, "Python process")
    if victim is None:
        raise Missed("it had just ended")
    world.supervisor.leave_half(process)
    struck(f"process {process.number}, its {name}", victim.pid)
    victim.signal(signal.SIGKILL)
    if not world.wait_until(lambda: world.supervisor.current is not process, 20):
        world.supervisor.kill()
        return "the other half had to be killed too"
    return ""


def kill_at(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
    process = hold_at(world, fault.place)
    struck(f"process {process.number} at {fault.place}", process.pid)
    world.supervisor.kill()
    return ""


def pause_driver(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
    process = world.supervisor.current
    if process is None:
        raise Missed("no process of the pipeline runs")
    world.supervisor.struck(process)
    struck(f"process {process.number}", process.pid)
    process.pause()
    world.wait(fault.hold_s)
    process.wake()
    return f"woken after {fault.hold_s} s"


def zombie(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
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


def _one(world: TortureWorld, fault: PlannedFault, role: Role, where: str) -> StrikeTarget:
    sessions = world.supervisor.sessions + world.executor_sessions if where == "all" else world.executor_sessions
    found: list[StrikeTarget] = []

    def some() -> bool:
        found[:] = find(sessions, role)
        return bool(found)

    if not world.wait_until(some, FIND_S_MAX):
        raise Missed(f"no {role.value} runs")
    return found[int(fault.choice * len(found))]


def kill_worker(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
    target = _one(world, fault, Role.WORKER, "all")
    struck(f"Python worker ({target.command})", target.process.pid)
    target.process.signal(signal.SIGKILL)
    return ""


def kill_worker_at(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
    """Of a flow: its driver starts all workers again."""
    process = hold_at(world, fault.place)
    world.supervisor.spare(process)
    held = process.held()
    victim = ProcessRef.of(held[0]) if held else None
    if victim is None:
        raise Missed("the worker had just ended")
    struck(f"worker at {fault.place}", victim.pid)
    victim.signal(signal.SIGKILL)
    process.release()
    return ""


def _hold(world: TortureWorld, processes: list[ProcessRef], hold_s: float) -> None:
    for process in processes:
        process.signal(signal.SIGSTOP)
    try:
        world.wait(hold_s)
    finally:
        for process in processes:
            process.signal(signal.SIGCONT)


def pause_worker(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
    target = _one(world, fault, Role.WORKER, "all")
    struck(f"Python worker ({target.command})", target.process.pid)
    _hold(world, [target.process], fault.hold_s)
    return f"woken after {fault.hold_s} s"


def kill_executor(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
    target = _one(world, fault, Role.EXECUTOR, "executors")
    struck("executor", target.process.pid)
    target.process.signal(signal.SIGKILL)
    return ""


def pause_executor(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
    target = _one(world, fault, Role.EXECUTOR, "executors")
    struck("executor and its Python workers", target.process.pid)
    _hold(world, [target.process, *children(target.process)], fault.hold_s)
    return f"woken after {fault.hold_s} s"


def cut_executor(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
    """Only the JVM is held: its Python workers go on with what they have got, and so does it once it wakes."""
    target = _one(world, fault, Role.EXECUTOR, "executors")
    struck("executor, without its Python workers", target.process.pid)
    hold_s = HEARTBEAT_LOST_S + 2.0 + fault.hold_s
    _hold(world, [target.process], hold_s)
    return f"given up by Spark meanwhile, woken after {hold_s:.1f} s"


def orphan(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
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
