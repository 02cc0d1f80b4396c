"""What is done around the pipeline: to Postgres, Kafka, the producer, and the files that Spark shuffles through."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from onefold.trials.torture.fault_plan import PlannedFault
from onefold.trials.torture.strikes.strike import FIND_S_MAX, Missed, Struck, hold_at
from onefold.trials.torture.torture_world import TortureWorld

SHUFFLE_S_MAX = 15.0
SHUFFLE_S = 1.5  # how long files are deleted as soon as they appear


def kill_postgres(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
    return _restart(world, fault, struck, world.servers.postgres, "Postgres")


def kill_kafka(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
    return _restart(world, fault, struck, world.servers.kafka, "Kafka")


def kill_kafka_at(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
    """Whatever was on its way when the driver stood there, it finds other connections and a coordinator that loads."""
    process = hold_at(world, fault.place)
    try:
        said = _restart(world, fault, struck, world.servers.kafka, f"Kafka, process {process.number} at {fault.place}")
    finally:
        process.release()
    return said


def _restart(world: TortureWorld, fault: PlannedFault, struck: Struck, server: Any, target: str) -> str:
    struck(target, server.status().pid)
    server.kill()
    world.wait_unseeing(fault.hold_s / 2)
    server.start()
    return "started again"


def kill_producer(world: TortureWorld, _fault: PlannedFault, struck: Struck) -> str:
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


def end_backends(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
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


def take_slots(world: TortureWorld, fault: PlannedFault, struck: Struck) -> str:
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


def lose_shuffle(world: TortureWorld, _fault: PlannedFault, struck: Struck) -> str:
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


def _connect(world: TortureWorld) -> psycopg.Connection[tuple[int]]:
    return psycopg.connect(world.job.postgres_url, autocommit=True, application_name="torture", connect_timeout=5)
