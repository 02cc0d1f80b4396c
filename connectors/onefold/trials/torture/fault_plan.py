"""Which faults, in which order, at which moments: drawn from the seed before anything runs."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from onefold.trials.torture.torture_settings import BOTH, ENGINE
from onefold.trials.workload.workload_settings import INTO_HBASE, INTO_KAFKA

if TYPE_CHECKING:
    from onefold.testing.containers.cut import Direction


class FaultKind(StrEnum):
    """What can befall a pipeline. The values are the names in the history."""

    KILL_DRIVER = "kill driver"
    # Its Python process or its JVM, or of a flow the process that forks workers; the other half goes on for a while.
    KILL_DRIVER_HALF = "kill half a driver"
    KILL_DRIVER_AT = "kill driver at a failpoint"
    PAUSE_DRIVER = "pause driver"
    ZOMBIE_DRIVER = "zombie driver"  # paused, replaced, woken beside its successor
    KILL_WORKER = "kill Python worker"
    PAUSE_WORKER = "pause Python worker"
    KILL_WORKER_AT = "kill Python worker at a failpoint"  # of a flow, whose driver lives on
    KILL_EXECUTOR = "kill executor"
    PAUSE_EXECUTOR = "pause executor"
    CUT_EXECUTOR = "cut off executor"  # silent for longer than Spark waits, while its Python workers go on
    ORPHAN_WORKER = "orphan Python worker"  # its executor is killed; the paused worker wakes later, and goes on
    MOVE = "move"  # by a savepoint: from the engine to Spark, and to the engine with other workers and backend
    KILL_MOVE_AT = "kill a move at a failpoint"
    KILL_POSTGRES = "kill Postgres"
    KILL_KAFKA = "kill Kafka"
    KILL_KAFKA_AT = "kill Kafka at a failpoint"  # the driver holds still there, and goes on once Kafka is back
    KILL_HBASE = "kill HBase"  # master, region server and ZooKeeper; its Thrift servers live on
    KILL_HBASE_AT = "kill HBase at a failpoint"
    KILL_THRIFT = "kill Thrift server"
    PAUSE_THRIFT = "pause Thrift server"  # for longer than its clients wait, and what it was asked for lands late
    FLUSH_HBASE = "flush HBase"
    COMPACT_HBASE = "compact HBase"  # flushed, and then all of it
    COMPACT_HBASE_AT = "compact HBase at a failpoint"  # the driver holds still there, and goes on over other files
    KILL_PRODUCER = "kill producer"  # in the middle of a transaction
    END_BACKENDS = "terminate backends"
    LOSE_SHUFFLE = "lose shuffle files"  # fetches fail, stages run again
    TAKE_SLOTS = "take prepared slots"
    # Of servers in containers alone, which have networks of their own:
    PAUSE_POSTGRES = "pause Postgres"
    PAUSE_KAFKA = "pause Kafka"
    PAUSE_HBASE = "pause HBase"
    CUT_DRIVER_FROM_POSTGRES = "cut driver from Postgres"
    CUT_DRIVER_FROM_KAFKA = "cut driver from Kafka"  # with a local master its tasks too, and the producer
    CUT_EXECUTOR_FROM_POSTGRES = "cut executor from Postgres"
    CUT_EXECUTOR_FROM_KAFKA = "cut executor from Kafka"
    CUT_POSTGRES = "cut Postgres from everybody"
    CUT_KAFKA = "cut Kafka from everybody"
    CUT_HBASE = "cut HBase from everybody"  # from its Thrift servers
    CUT_THRIFT = "cut Thrift server from everybody"
    CUT_DRIVER_AT = "cut driver at a failpoint"  # from where an epoch ends, for longer than it waits for an answer


DRIVER_PLACES = (
    "before:AcquireGeneration",
    "before:Freeze",
    "before:RunWriters",
    "before:RunWriters#2",
    "after:RunWriters#3",
    "before:Verify#2",
    "before:Decide#2",
    "after:Decide",
    "before:Commit#2",
    "after:Commit",
    "before:WriteLedger#2",
    "before:Complete",
    "after:Complete",
    "before:ListLeftovers",
)
_PLACES = {
    "two_phase": ("postgres.commit_prepared#2", "postgres.commit_prepared#5"),
    **dict.fromkeys(("staged", "direct"), ("staged.merge", "staged.merge#2")),
    "transactional": ("kafka:ended#2", "kafka:ledger#2"),
    "keyed": ("announced:commit#2", "kafka:noted", "kafka:noted#3"),
    **dict.fromkeys(INTO_HBASE, ("announced:commit#2", "hbase:noted", "hbase:noted#3")),
}
_PLACES_OF_DESTINATION = ("before:Verify", "before:Decide#2", "after:Decide", "before:Commit#2", "before:WriteLedger#2")
_IN_WORKERS = ("writers:written", "before:prepare", "after:prepare", "writers:prepared")  # of a local master or a flow
# In the commands of a move. Up to the decision nothing has changed, and from there the pipeline has moved.
UNDECIDED_MOVE = (
    "before:AcquireGeneration",
    "after:AcquireGeneration",
    "before:OpenEpoch",
    "restore:imported",
    "before:Decide",
)
_MOVE_PLACES = (*UNDECIDED_MOVE, "after:Decide", "before:WriteLedger", "before:Complete", "after:Complete")
_OF_FLOWS = ("engine:begun", "engine:begun#4")  # the workers have the epoch's range
_IN_WORKERS_OF_FLOWS = ("before:StoreState", "before:StoreState#3", "after:StoreState", "writers:prepared#3")
_IN_WORKERS_UNDER = {
    "transaction": ("hop:processed", "hop:written", "hop:committed", "hop:committed#5"),
    "unaligned": ("before:StoreFlight", "after:StoreFlight"),
}
_IN_WORKERS_OF = {
    "transactional": ("kafka:begun", "kafka:begun#3"),
    **dict.fromkeys(("rolling", "incremental"), ("hbase:read", "hbase:read#3")),
}
_OF_HBASE_AT = {FaultKind.KILL_HBASE_AT, FaultKind.COMPACT_HBASE_AT}
_OF_HBASE = {
    FaultKind.KILL_HBASE,
    FaultKind.PAUSE_HBASE,
    FaultKind.CUT_HBASE,
    FaultKind.KILL_THRIFT,
    FaultKind.PAUSE_THRIFT,
    FaultKind.CUT_THRIFT,
    FaultKind.FLUSH_HBASE,
    FaultKind.COMPACT_HBASE,
    *_OF_HBASE_AT,
}

# A driver takes 10 to 20 s to be back, on two cores: what strikes it is drawn less often than what passes quickly.
_WEIGHTS = {
    FaultKind.KILL_DRIVER: 1,
    FaultKind.KILL_DRIVER_HALF: 1,
    FaultKind.KILL_DRIVER_AT: 2,
    FaultKind.PAUSE_DRIVER: 2,
    FaultKind.ZOMBIE_DRIVER: 1,
    FaultKind.KILL_WORKER: 6,
    FaultKind.PAUSE_WORKER: 4,
    FaultKind.KILL_WORKER_AT: 5,
    FaultKind.KILL_EXECUTOR: 4,
    FaultKind.PAUSE_EXECUTOR: 3,
    FaultKind.CUT_EXECUTOR: 2,
    FaultKind.ORPHAN_WORKER: 2,
    FaultKind.MOVE: 6,
    FaultKind.KILL_MOVE_AT: 8,
    FaultKind.KILL_POSTGRES: 3,
    FaultKind.KILL_KAFKA: 1,
    FaultKind.KILL_KAFKA_AT: 2,
    FaultKind.KILL_HBASE: 2,
    FaultKind.KILL_HBASE_AT: 2,
    FaultKind.KILL_THRIFT: 5,
    FaultKind.PAUSE_THRIFT: 3,
    FaultKind.FLUSH_HBASE: 5,
    FaultKind.COMPACT_HBASE: 4,
    FaultKind.COMPACT_HBASE_AT: 2,
    FaultKind.KILL_PRODUCER: 1,
    FaultKind.END_BACKENDS: 7,
    FaultKind.LOSE_SHUFFLE: 5,
    FaultKind.TAKE_SLOTS: 3,
    FaultKind.PAUSE_POSTGRES: 2,
    FaultKind.PAUSE_KAFKA: 2,
    FaultKind.PAUSE_HBASE: 2,
    FaultKind.CUT_DRIVER_FROM_POSTGRES: 3,
    FaultKind.CUT_DRIVER_FROM_KAFKA: 3,
    FaultKind.CUT_EXECUTOR_FROM_POSTGRES: 3,
    FaultKind.CUT_EXECUTOR_FROM_KAFKA: 3,
    FaultKind.CUT_POSTGRES: 2,
    FaultKind.CUT_KAFKA: 2,
    FaultKind.CUT_HBASE: 2,
    FaultKind.CUT_THRIFT: 3,
    FaultKind.CUT_DRIVER_AT: 1,
}
_MORE_INTO_KAFKA = {FaultKind.KILL_KAFKA: 3}
_OF_POSTGRES = {
    FaultKind.KILL_POSTGRES,
    FaultKind.PAUSE_POSTGRES,
    FaultKind.END_BACKENDS,
    FaultKind.CUT_DRIVER_FROM_POSTGRES,
    FaultKind.CUT_POSTGRES,
}
_MOVES = {FaultKind.MOVE, FaultKind.KILL_MOVE_AT}
_EXECUTORS_CUT = {FaultKind.CUT_EXECUTOR_FROM_POSTGRES, FaultKind.CUT_EXECUTOR_FROM_KAFKA}
_OF_CLUSTERS = {
    FaultKind.KILL_EXECUTOR,
    FaultKind.PAUSE_EXECUTOR,
    FaultKind.CUT_EXECUTOR,
    FaultKind.ORPHAN_WORKER,
    *_EXECUTORS_CUT,
}
_CUTS = {
    FaultKind.CUT_DRIVER_FROM_POSTGRES,
    FaultKind.CUT_DRIVER_FROM_KAFKA,
    FaultKind.CUT_POSTGRES,
    FaultKind.CUT_KAFKA,
    FaultKind.CUT_HBASE,
    FaultKind.CUT_THRIFT,
    FaultKind.CUT_DRIVER_AT,
    *_EXECUTORS_CUT,
}
_OF_RUNTIMES = {FaultKind.LOSE_SHUFFLE: "spark", FaultKind.KILL_WORKER_AT: ENGINE}
_OF_CONTAINERS = {FaultKind.PAUSE_POSTGRES, FaultKind.PAUSE_KAFKA, FaultKind.PAUSE_HBASE, *_CUTS}

_HOLD_S = (0.5, 4.0)
_HOLDS_S = {
    **dict.fromkeys(_OF_CONTAINERS, (2.0, 16.0)),  # a client of HBase waits 10 s for an answer
    FaultKind.CUT_DRIVER_AT: (66.0, 76.0),  # and one of Postgres or Kafka at most 60 s
}
_DIRECTIONS: tuple[Direction, ...] = ("both", "incoming", "outgoing")


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault. It strikes `delay_s` after the one before, or after the next complete epoch if `after_epoch`.

    `hold_s` is how long a process stays paused, a server down or cut off, or a slot taken; `choice` (0 to 1) picks the
    victim. `place` is the failpoint that a driver is to be killed at, or to hold still at. `direction` says which
    packets a cut drops: what comes to the server or worker that is cut, what it sends, or both.
    """

    kind: FaultKind
    delay_s: float
    after_epoch: bool
    hold_s: float
    choice: float
    place: str | None = None
    direction: Direction = "both"


def kinds(
    deliveries: Collection[str], on_cluster: bool, in_containers: bool = False, *, runtime: str = "spark"
) -> list[FaultKind]:
    """The kinds that make sense, each as often as it shall come in one deal of the cards. Of a pipeline that moves
    between the runtimes, those of both."""
    out = set() if on_cluster else set(_OF_CLUSTERS)
    out |= set() if runtime == BOTH else _MOVES
    out |= {kind for kind, of in _OF_RUNTIMES.items() if of != runtime}
    if not in_containers:
        out |= _OF_CONTAINERS
    if "two_phase" not in deliveries:
        out.add(FaultKind.TAKE_SLOTS)  # nobody prepares anything in Postgres
    into_kafka = not {*deliveries}.isdisjoint(INTO_KAFKA)
    if not into_kafka:
        out.add(FaultKind.KILL_KAFKA_AT)  # what the driver then does concerns the destination
    if {*deliveries}.isdisjoint(INTO_HBASE):
        out |= _OF_HBASE
    if {*deliveries} <= {*INTO_KAFKA, *INTO_HBASE}:
        out |= (
            {FaultKind.CUT_EXECUTOR_FROM_POSTGRES} if on_cluster else _OF_POSTGRES
        )  # the store is a file, but on a cluster
    weights = _WEIGHTS | (_MORE_INTO_KAFKA if into_kafka else {})
    return [kind for kind, weight in weights.items() if kind not in out for _ in range(weight)]


def faults(
    seed: int,
    deliveries: Collection[str],
    on_cluster: bool,
    in_containers: bool = False,
    *,
    runtime: str = "spark",
    protections: Collection[str] = (),
) -> Iterator[PlannedFault]:
    """Faults without end; each kind comes once before any comes often. `protections` are a flow's mechanism and
    alignment."""
    rng = random.Random(seed)
    deck = kinds(deliveries, on_cluster, in_containers, runtime=runtime)
    of_workers = (place for delivery in deliveries for place in _IN_WORKERS_OF.get(delivery, ()))
    on_engine = runtime == ENGINE
    protected = [place for each in protections for place in _IN_WORKERS_UNDER.get(each, ())]
    of_flows = (*_IN_WORKERS_OF_FLOWS, *protected) if on_engine else ()
    in_workers = () if on_cluster else (*_IN_WORKERS, *of_flows, *of_workers)
    of_sinks = tuple(dict.fromkeys(place for delivery in deliveries for place in _PLACES[delivery]))
    if {*deliveries} <= {"staged", "direct"}:  # which the decision's own transaction verifies
        of_driver, of_destination = (
            tuple(place for place in some if "Verify" not in place) for some in (DRIVER_PLACES, _PLACES_OF_DESTINATION)
        )
    else:
        of_driver, of_destination = DRIVER_PLACES, _PLACES_OF_DESTINATION
    places = {
        FaultKind.KILL_DRIVER_AT: (*of_driver, *of_sinks, *in_workers, *(_OF_FLOWS if on_engine else ())),
        FaultKind.KILL_WORKER_AT: in_workers,
        FaultKind.KILL_MOVE_AT: _MOVE_PLACES,
        **dict.fromkeys((FaultKind.KILL_KAFKA_AT, FaultKind.CUT_DRIVER_AT), (*of_destination, *of_sinks)),
        **dict.fromkeys(_OF_HBASE_AT, (*of_destination, *of_sinks, *in_workers)),
    }
    first = list(dict.fromkeys(deck))
    rng.shuffle(first)
    while True:
        for kind in first:
            yield PlannedFault(
                kind=kind,
                delay_s=round(rng.uniform(0.1, 1.5), 2),
                after_epoch=rng.random() < 0.5,
                hold_s=round(rng.uniform(*_HOLDS_S.get(kind, _HOLD_S)), 2),
                choice=rng.random(),
                place=rng.choice(places[kind]) if kind in places else None,
                direction=rng.choice(_DIRECTIONS) if kind in _CUTS else "both",
            )
        first = rng.sample(deck, len(deck))
