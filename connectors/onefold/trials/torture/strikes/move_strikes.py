"""The pipeline moves, as operators have it: to the other runtime, another backend, other workers, by a savepoint."""

from __future__ import annotations

from pathlib import Path

from onefold.trials.torture.fault_plan import UNDECIDED_MOVE, PlannedFault
from onefold.trials.torture.strikes.strike import PLACE_S_MAX, Missed, Struck
from onefold.trials.torture.torture_world import TortureWorld
from onefold.trials.workload.workload_settings import Job

CREATES = 0.2  # of the kills, so many may strike the savepoint that is made, and not what restores it
_NAMED = """from pathlib import Path

from onefold.trials.workload.flow_job import pipeline_of
from onefold.trials.workload.workload_settings import Job

pipeline = pipeline_of(Job.load(Path({job!r})))
"""


def move(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
    """Stopped by SIGTERM, it gives a savepoint, which is restored into the form that it has next. A command that is
    killed before the decision has changed nothing, and the pipeline goes on as it was; one that is killed after it has
    moved the pipeline."""
    supervisor = world.supervisor
    complete = world.watcher.complete
    world.wait_until(lambda: world.watcher.complete > complete, PLACE_S_MAX)
    process = supervisor.current
    if process is None:
        raise Missed("no process of the pipeline runs")
    supervisor.struck(process)
    supervisor.is_off = True
    try:
        process.terminate()
        world.wait_until(lambda: supervisor.current is None, PLACE_S_MAX)
        if process.exit_status != 0:
            raise Missed(f"it did not end by SIGTERM: {process.exit_status}")
        of, to = (_named(jobs[0], world.directory) for jobs in (world.jobs, world.next_jobs))
        savepoint, folder = f"before-{process.number}", f"--in={world.directory / 'savepoints'}"
        struck(f"from {_said(world.jobs[0])} to {_said(world.next_jobs[0])}", None)
        for number, command in enumerate((("create", of, "--name", savepoint), ("restore", to, savepoint, "--yes"))):
            place = fault.place if number or fault.choice < CREATES else None
            there = supervisor.beside(("onefold.cli.entry", "savepoint", *command, folder), place)
            world.wait_until(lambda there=there: there.is_held() or there.exit_status is not None, PLACE_S_MAX)  # type: ignore[misc]
            if there.exit_status is None:
                there.kill()
                if not there.is_held():
                    supervisor.complaints.append(f"savepoint {command[0]} hung; log {there.log}")
                elif fault.place not in UNDECIDED_MOVE:
                    world.moved()
                return f"killed at {fault.place}"
            if there.exit_status:
                supervisor.complaints.append(f"savepoint {command[0]} ended with {there.exit_status}; log {there.log}")
                return "not moved"
        world.moved()
        return "moved" if fault.place is None else f"moved: {fault.place} was not reached"
    finally:
        supervisor.is_off = False


def _named(job: Job, directory: Path) -> str:
    """A program with its pipeline, as commands name it."""
    path = directory / f"{job.state}_{job.workers}"
    job.save(path.with_suffix(".json"))
    program = path.with_suffix(".py")
    program.write_text(_NAMED.format(job=str(path.with_suffix(".json"))))
    return f"{program}:pipeline"


def _said(job: Job) -> str:
    return f"the engine, {job.workers} workers, state in {job.state}" if job.on_engine else "Spark"
