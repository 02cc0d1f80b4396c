"""The faults are drawn from the seed alone, and every kind that makes sense comes early."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path
from typing import get_args

import pytest

import onefold
from onefold.core.protocol.effects import Effect
from onefold.trials.torture.fault_plan import UNDECIDED_MOVE, FaultKind, faults, kinds
from onefold.trials.torture.torture_settings import ENGINE, TortureSettings
from onefold.trials.workload.workload_settings import INTO_HBASE

MOVES = {FaultKind.MOVE, FaultKind.KILL_MOVE_AT}


def passed_places() -> set[str]:
    code = "".join(file.read_text() for portion in onefold.__path__ for file in Path(portion).rglob("*.py"))
    effects = {f"{when}:{effect.__name__}" for when in ("before", "after") for effect in get_args(Effect)}
    return effects | set(re.findall(r'failpoint\("([^"]+)"\)', code))


def test_the_same_seed_gives_the_same_faults_and_another_gives_others() -> None:
    for in_containers in (False, True):
        first, again, other = (
            list(islice(faults(seed, ["two_phase"], True, in_containers), 100)) for seed in (1, 1, 2)
        )
        assert first == again
        assert first != other


@pytest.mark.parametrize("delivery", ["two_phase", "staged", "direct", "transactional", "keyed", *INTO_HBASE])
@pytest.mark.parametrize("on_cluster", [True, False])
@pytest.mark.parametrize("in_containers", [True, False])
def test_every_kind_comes_once_before_any_comes_twice_and_there_are_more_than_six(
    delivery: str, on_cluster: bool, in_containers: bool
) -> None:
    some = set(kinds([delivery], on_cluster, in_containers))
    drawn = list(islice(faults(3, [delivery], on_cluster, in_containers), len(some)))
    assert {fault.kind for fault in drawn} == some
    assert len(some) >= 6


def test_executors_are_struck_on_a_cluster_only_and_slots_where_somebody_needs_them() -> None:
    local, cluster = set(kinds(["two_phase"], False)), set(kinds(["two_phase"], True))
    assert cluster - local == {
        FaultKind.KILL_EXECUTOR,
        FaultKind.PAUSE_EXECUTOR,
        FaultKind.CUT_EXECUTOR,
        FaultKind.ORPHAN_WORKER,
    }
    assert cluster - set(kinds(["staged"], True)) == {FaultKind.TAKE_SLOTS}


def test_networks_are_cut_and_servers_paused_as_a_whole_in_containers_only() -> None:
    some = ["two_phase", "transactional", "rolling"]
    for on_cluster in (False, True):
        more = set(kinds(some, on_cluster, True)) - set(kinds(some, on_cluster))
        of_executors = {FaultKind.CUT_EXECUTOR_FROM_POSTGRES, FaultKind.CUT_EXECUTOR_FROM_KAFKA}
        assert all(kind.value.startswith(("cut ", "pause ")) for kind in more)
        assert len(more - of_executors) == 10
        assert more & of_executors == (of_executors if on_cluster else set())
    assert set(kinds(some, True, True)) == set(FaultKind) - {FaultKind.KILL_WORKER_AT, *MOVES}


def test_a_cut_has_a_direction_and_one_of_them_outlives_every_client() -> None:
    drawn = list(islice(faults(5, ["two_phase", "transactional", "rolling"], True, True), 2000))
    cuts = [f for f in drawn if f.kind.value.startswith("cut ") and f.kind is not FaultKind.CUT_EXECUTOR]
    assert {f.direction for f in cuts} == {"both", "incoming", "outgoing"}
    assert {f.direction for f in drawn if f not in cuts} == {"both"}
    assert {f.hold_s > 60 for f in cuts if f.kind is FaultKind.CUT_DRIVER_AT} == {True}
    assert {f.hold_s > 60 for f in drawn if f.kind is not FaultKind.CUT_DRIVER_AT} == {False}


@pytest.mark.parametrize("delivery", ["transactional", "keyed", *INTO_HBASE])
def test_executors_are_cut_from_a_postgres_only_where_they_write_to_it(delivery: str) -> None:
    assert FaultKind.CUT_EXECUTOR_FROM_POSTGRES not in kinds([delivery], True, True)
    assert FaultKind.CUT_DRIVER_FROM_POSTGRES in kinds([delivery], True, True), "the checkpoint store is there"
    assert FaultKind.CUT_DRIVER_FROM_POSTGRES not in kinds([delivery], False, True)


@pytest.mark.parametrize("delivery", ["transactional", "keyed"])
def test_into_kafka_the_broker_is_struck_more_and_postgres_where_it_has_the_checkpoint_store(delivery: str) -> None:
    local, cluster = kinds([delivery], False), kinds([delivery], True)
    of_postgres = {FaultKind.KILL_POSTGRES, FaultKind.END_BACKENDS}
    assert not set(local) & (of_postgres | {FaultKind.TAKE_SLOTS})
    assert set(cluster) >= of_postgres
    assert FaultKind.KILL_KAFKA_AT in local
    assert FaultKind.KILL_KAFKA_AT not in kinds(["two_phase"], True)
    assert local.count(FaultKind.KILL_KAFKA) > kinds(["two_phase"], False).count(FaultKind.KILL_KAFKA)


@pytest.mark.parametrize("delivery", INTO_HBASE)
def test_into_hbase_each_of_its_processes_is_struck_and_its_files_are_rewritten(delivery: str) -> None:
    local, cluster = set(kinds([delivery], False)), set(kinds([delivery], True))
    in_containers = set(kinds([delivery], True, True))
    of_hbase = {kind for kind in FaultKind if "HBase" in kind.value or "Thrift" in kind.value}
    assert in_containers >= of_hbase
    of_hbase -= {FaultKind.PAUSE_HBASE, FaultKind.CUT_HBASE, FaultKind.CUT_THRIFT}
    assert len(of_hbase) == 7
    assert local & cluster >= of_hbase
    assert not local & {FaultKind.KILL_POSTGRES, FaultKind.END_BACKENDS, FaultKind.TAKE_SLOTS}
    assert FaultKind.KILL_POSTGRES in cluster
    assert not {*kinds(["two_phase"], True), *kinds(["transactional"], True)} & of_hbase


@pytest.mark.parametrize("delivery", ["rolling", "incremental"])
def test_hbase_is_killed_and_compacted_between_what_a_task_reads_and_what_it_writes(delivery: str) -> None:
    for kind in (FaultKind.KILL_HBASE_AT, FaultKind.COMPACT_HBASE_AT):
        places = {fault.place for fault in islice(faults(5, [delivery], False), 2000) if fault.kind is kind}
        assert {"hbase:read", "hbase:noted", "after:Decide"} < places


def test_only_a_fault_at_a_failpoint_names_a_place_and_only_one_that_its_delivery_passes() -> None:
    others = {
        "two_phase": "staged.",
        "staged": "postgres.",
        "transactional": "postgres.",
        "keyed": "kafka:begun",
    } | dict.fromkeys(INTO_HBASE, "kafka:")
    for delivery, other in others.items():
        drawn = list(islice(faults(5, [delivery], False, True), 2000))
        at_places = {kind for kind in FaultKind if kind.value.endswith(" at a failpoint")}
        assert all((fault.place is not None) is (fault.kind in at_places) for fault in drawn)
        places = {fault.place for fault in drawn if fault.place}
        assert len(places) > 15
        assert not any(place.startswith(other) for place in places)


@pytest.mark.parametrize("delivery", ["two_phase", "staged", "transactional", "keyed", *INTO_HBASE])
def test_every_place_is_one_that_the_code_passes(delivery: str) -> None:
    """A driver that is to be killed at another one is never struck, and the run is none the wiser."""
    places = {
        fault.place.partition("#")[0] for fault in islice(faults(5, [delivery], False, True), 2000) if fault.place
    }
    assert places <= passed_places()


@pytest.mark.parametrize("mechanism", ["barriers", "microbatch", "transaction"])
def test_workers_of_a_flow_are_held_where_their_mechanism_passes(mechanism: str) -> None:
    drawn = islice(faults(5, ["two_phase"], False, runtime=ENGINE, protections=(mechanism, "aligned")), 2000)
    places = {fault.place.partition("#")[0] for fault in drawn if fault.place}
    assert places <= passed_places() and {"before:StoreState", "writers:prepared", "engine:begun"} < places
    in_hops = {"hop:processed", "hop:written", "hop:committed"}
    assert places & in_hops == (in_hops if mechanism == "transaction" else set())


def test_while_kafka_is_down_the_driver_stands_at_a_place_of_its_own() -> None:
    places = {
        fault.place
        for fault in islice(faults(5, ["transactional"], False), 2000)
        if fault.kind is FaultKind.KILL_KAFKA_AT
    }
    assert {"after:Decide", "kafka:ended#2"} < places
    assert not any(place.startswith("writers:") for place in places if place)


def test_beside_each_other_sinks_are_struck_by_the_faults_of_each() -> None:
    for some in (["keyed", "two_phase"], ["transactional", "row_key"], ["row_key", "keyed", "staged"]):
        for on_cluster in (True, False):
            alone = set().union(*(kinds([delivery], on_cluster, True) for delivery in some))
            assert set(kinds(some, on_cluster, True)) == alone
        places = {fault.place for fault in islice(faults(5, some, False), 4000)}
        assert places >= {f.place for delivery in some for f in islice(faults(5, [delivery], False), 50)}


def test_on_the_engine_workers_are_killed_at_failpoints_and_nothing_of_spark_is_struck() -> None:
    some = TortureSettings(runtime="engine", deliveries=("transactional", "row_key")).struck
    spark, engine = set(kinds(some, False)), set(kinds(some, False, runtime="engine"))
    assert spark - engine == {FaultKind.LOSE_SHUFFLE}
    assert engine - spark == {FaultKind.KILL_WORKER_AT}
    assert engine >= {
        FaultKind.KILL_WORKER,
        FaultKind.PAUSE_WORKER,
        FaultKind.KILL_DRIVER_HALF,
        FaultKind.ZOMBIE_DRIVER,
    }


def test_a_pipeline_that_moves_is_struck_in_moves_and_by_what_can_befall_it_on_either_runtime() -> None:
    alone = [set(kinds(["two_phase"], False, runtime=runtime)) for runtime in ("spark", "engine")]
    assert set(kinds(["two_phase"], False, runtime="both")) == alone[0] & alone[1] | MOVES
    drawn = list(islice(faults(5, ["two_phase"], False, runtime="both"), 3000))
    places = {fault.place for fault in drawn if fault.kind is FaultKind.KILL_MOVE_AT}
    assert {*UNDECIDED_MOVE, "after:Decide"} < places
    assert {place.partition("#")[0] for place in places if place} <= passed_places()


@pytest.mark.parametrize("delivery", ["two_phase", "staged", "transactional", "keyed", *INTO_HBASE])
def test_a_flow_has_totals_in_postgres_beside_every_sink_so_that_this_is_struck_too(delivery: str) -> None:
    settings = TortureSettings(runtime="engine", deliveries=(delivery,))
    assert settings.needs_postgres
    some = set(kinds(settings.struck, False, runtime="engine"))
    assert some >= {FaultKind.KILL_POSTGRES, FaultKind.END_BACKENDS, FaultKind.TAKE_SLOTS}
    assert some > set(kinds([delivery], False)) - {FaultKind.LOSE_SHUFFLE}


@pytest.mark.parametrize("delivery", ["two_phase", "staged", "transactional", "keyed", *INTO_HBASE])
def test_a_flow_is_struck_at_places_of_its_own_and_its_workers_only_at_theirs(delivery: str) -> None:
    drawn = list(islice(faults(5, [delivery], False, runtime="engine"), 6000))
    of_drivers = {fault.place for fault in drawn if fault.kind is FaultKind.KILL_DRIVER_AT}
    of_workers = {fault.place for fault in drawn if fault.kind is FaultKind.KILL_WORKER_AT}
    assert of_drivers > of_workers >= {"before:StoreState", "after:StoreState", "writers:written", "writers:prepared"}
    assert {"engine:begun", "after:Decide"} <= of_drivers - of_workers
    assert {place.partition("#")[0] for place in of_drivers if place} <= passed_places()
