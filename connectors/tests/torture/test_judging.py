"""The pure parts of the torture's judgement: rows compared, processes told apart, and a history that can be read."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from onefold.core import Committable, EpochRecord, EpochState, Positions, Range, SinkKind
from onefold.core.invariants import Comparison
from onefold.trials.torture.destinations.table_comparison import (
    RecordId,
    Row,
    compare_appended,
    compare_newest,
    compare_rows,
    versions_after,
)
from onefold.trials.torture.history import HistoryLog
from onefold.trials.torture.snapshot_reader import TableReader
from onefold.trials.torture.strikes.targets import FLOW, Role, role_of
from onefold.trials.workload.mixed import MixedOrder, mixed_orders
from onefold.trials.workload.producer import number_of
from onefold.trials.workload.workload_settings import Job

GOOD = {1: [(1, "a")], 2: [(2, "b")], 3: [(3, "c")]}


def test_equal_rows_are_equal() -> None:
    found = compare_rows(GOOD, GOOD)
    assert (found.expected, found.actual) == (3, 3)
    assert (found.lost, found.duplicated, found.changed, found.unexpected) == (0, 0, 0, 0)
    assert found.samples == {}


def test_lost_doubled_changed_and_strange_rows_are_told_apart() -> None:
    found = compare_rows(GOOD, {2: [(2, "b"), (2, "b")], 3: [(3, "x")], 9: [(9, "z")]})
    assert (found.lost, found.duplicated, found.changed, found.unexpected) == (1, 1, 1, 1)
    assert found.samples == {
        "lost": ["id=1"],
        "duplicated": ["id=2"],
        "changed": ["id=3"],
        "unexpected": ["id=9"],
    }


def test_a_key_that_the_source_has_twice_is_expected_twice() -> None:
    twice = {1: [(1, "a"), (1, "b")]}
    assert compare_rows(twice, {1: [(1, "b"), (1, "a")]}).samples == {}
    assert compare_rows(twice, {1: [(1, "a")]}).lost == 1
    assert compare_rows(twice, {1: [(1, "a"), (1, "a")]}).changed == 2


AT = datetime(2026, 1, 1, tzinfo=UTC)


def order(key: int, version: int = 0, **more: Any) -> MixedOrder:
    return replace(MixedOrder(key, version, 1, Decimal(1), AT, False, ""), **more)


def wrong(found: Comparison) -> dict[str, int]:
    kinds = {"lost": found.lost, "duplicated": found.duplicated, "changed": found.changed}
    return {kind: count for kind, count in {**kinds, "unexpected": found.unexpected}.items() if count}


def test_an_order_that_postgres_refuses_is_a_dead_letter_once_and_a_good_one_never() -> None:
    orders = {(0, 0): order(1), (0, 1): order(2, account=None), (1, 0): order(3, note="\0")}
    row: dict[Hashable, list[Row]] = {1: [(1, 1, Decimal(1), AT)]}
    dead = {(0, 1): 1, (1, 0): 1}
    found = compare_appended(orders, row, dead)
    assert (found.expected, found.actual, found.dead, wrong(found)) == (3, 1, 2, {})
    assert wrong(compare_appended(orders, row, {(0, 1): 1})) == {"lost": 1}
    assert wrong(compare_appended(orders, row, {**dead, (0, 1): 2})) == {"duplicated": 1}
    assert wrong(compare_appended(orders, row, {**dead, (0, 0): 1})) == {"unexpected": 1}
    assert wrong(compare_appended(orders, row, {**dead, (7, 7): 1})) == {"unexpected": 1}
    assert wrong(compare_appended(orders, {**row, 2: [(2, None, Decimal(1), AT)]}, dead)) == {"unexpected": 1}


VERSIONS: Mapping[RecordId, MixedOrder] = {
    (0, 0): order(1, 1),
    (0, 1): order(1, 3),
    (0, 2): order(1, 3, account=9),  # an equal version: either may be there
    (0, 3): order(1, 2),
    (0, 4): order(2, 5),
    (0, 5): order(2, 5, is_deletion=True),
    (0, 6): order(3, 1),
    (0, 7): order(3, 2, account=0),  # refused, unless a newer one was there already
    (0, 8): order(4, 1, account=0, is_deletion=True),  # what is deleted has no values
}


def test_of_versions_the_newest_good_one_is_the_row_and_a_deletion_wins_against_an_equal_one() -> None:
    rows: dict[Hashable, list[Row]] = {key: [(key, version, 1, Decimal(1), AT)] for key, version in ((1, 3), (3, 1))}
    dead = {(0, 7): 1}
    assert wrong(compare_newest(VERSIONS, rows, dead)) == {}
    assert wrong(compare_newest(VERSIONS, {**rows, 1: [(1, 3, 9, Decimal(1), AT)]}, dead)) == {}
    assert wrong(compare_newest(VERSIONS, rows, {})) == {"lost": 1}
    assert wrong(compare_newest({**VERSIONS, (0, 9): order(3, 4)}, {**rows, 3: [(3, 4, 1, Decimal(1), AT)]}, {})) == {}
    assert wrong(compare_newest(VERSIONS, {**rows, 1: [(1, 2, 1, Decimal(1), AT)]}, dead)) == {"changed": 1}
    assert wrong(compare_newest(VERSIONS, {**rows, 2: [(2, 5, 1, Decimal(1), AT)]}, dead)) == {"unexpected": 1}
    assert wrong(compare_newest(VERSIONS, {1: rows[1]}, dead)) == {"lost": 1}
    assert wrong(compare_newest(VERSIONS, rows, {**dead, (0, 8): 1})) == {"unexpected": 1}


def epoch(number: int, start: int, end: int, rows: int = 0, state: EpochState = EpochState.COMPLETE) -> EpochRecord:
    span = Range(Positions.of({"orders/0": start}), Positions.of({"orders/0": end}))
    manifest = (Committable("orders", SinkKind.LAST_RESOURCE, "a", 1, number, rows),)
    others = (Committable("totals", SinkKind.TWO_PHASE, "b", 1, number, 9),)
    return EpochRecord("p", number, 1, state, span, 5, "q", number, "", (*manifest, *others))


def test_what_a_table_of_versions_shows_after_each_decided_epoch_is_known() -> None:
    given_up = epoch(2, 2, 7, state=EpochState.GIVEN_UP)  # and the next epoch is a shorter one
    shown = dict(versions_after({1: epoch(1, 0, 2), 2: given_up, 3: epoch(3, 2, 5), 4: epoch(4, 5, 9)}, VERSIONS))
    assert shown == {1: {1: 3}, 3: {1: 3, 2: 5}, 4: {1: 3, 3: 1}}


def test_a_reader_that_counts_rows_knows_how_many_of_the_last_decided_epoch_are_there() -> None:
    job = Job("kafka", "", "checkpoint", "", ("staged",), 10, exactly_once=True)
    reader = TableReader(job, _counts={(1, 4), (3, 4), (3, 7), (3, 10)})
    records = {1: epoch(1, 0, 2, 4), 2: epoch(2, 2, 7, 5, EpochState.GIVEN_UP), 3: epoch(3, 2, 5, 6)}
    seen = {
        (observation.epoch, observation.rows, observation.rows_whole)
        for observation in reader.observations(records, {})
    }
    assert seen == {(1, 4, 4), (3, 0, 6), (3, 3, 6), (3, 6, 6)}


def test_mixed_orders_are_the_same_again_and_have_every_kind() -> None:
    values = list(islice(mixed_orders(10_000, 7, "upsert", bad_rows=True), 5_000))
    assert values == list(islice(mixed_orders(10_000, 7, "upsert", bad_rows=True), 5_000))
    assert [json.loads(value)["number"] for value in values] == list(range(5_000))
    parsed = [MixedOrder.parse(value) for value in values]
    assert any(o.has_no_form for o in parsed) and any(o.account is None for o in parsed)
    assert any(o.is_deletion for o in parsed) and any(o.amount < 0 for o in parsed)
    assert not any(o.is_bad for o in map(MixedOrder.parse, mixed_orders(5_000, 7, "upsert", bad_rows=False)))


def test_no_order_can_be_read_from_an_unreadable_one_but_its_number_is_known() -> None:
    values = list(mixed_orders(5_000, 7, "append", bad_rows=True, unreadable=True))
    refused: list[str] = []
    for value in values:
        try:
            assert not MixedOrder.parse(value).is_bad
        except ValueError as error:
            refused.append(type(error).__name__)
    assert 20 < len(refused) < 100
    assert {*refused} == {"ValueError", "JSONDecodeError"}, "a wrong type, and no JSON at all"
    assert [number_of(value) for value in values] == list(range(5_000))
    few = map(MixedOrder.parse, mixed_orders(5_000, 7, "append", bad_rows=False, accounts=10))
    assert {order.account for order in few} == set(range(1, 10))


DAEMON = ("python", "-m", "pyspark.daemon", "pyspark.worker")


@pytest.mark.parametrize(
    ("command", "parent", "role"),
    [
        (("java", "-cp", "x", "org.apache.spark.deploy.SparkSubmit"), ("python",), Role.DRIVER_JVM),
        (("java", "org.apache.spark.executor.CoarseGrainedExecutorBackend"), ("java",), Role.EXECUTOR),
        (DAEMON, DAEMON, Role.WORKER),
        (DAEMON, ("java",), None),
        (("python", "-m", "pyspark.sql.streaming.python_streaming_source_runner"), ("java",), Role.WORKER),
        (("java", "org.apache.spark.deploy.worker.Worker"), (), None),
        (("bash",), (), None),
    ],
)
def test_a_process_is_what_its_command_line_says(
    command: tuple[str, ...], parent: tuple[str, ...], role: Role | None
) -> None:
    assert role_of(command, parent) is role


def test_of_the_processes_of_a_flow_the_driver_forks_a_fork_server_and_that_the_workers() -> None:
    flow, shell = ("python", "-m", FLOW, "job.json"), ("sh",)
    assert role_of(flow, shell, shell) is None
    assert role_of(flow, flow, shell) is Role.FORK_SERVER
    assert role_of(flow, flow, flow) is Role.WORKER


def test_each_line_of_the_history_is_an_object_with_time_and_event(tmp_path: Path) -> None:
    history = HistoryLog(tmp_path / "history.jsonl")
    history.write("fault", number=1, kind="kill driver", pid=None)
    history.write("end", exact=True)  # on disk already, though nobody has closed it
    lines = [json.loads(line) for line in history.path.read_text().splitlines()]
    history.close()
    assert [line["event"] for line in lines] == ["fault", "end"]
    assert all({"time", "seconds"} <= line.keys() for line in lines)
    assert lines[0]["pid"] is None
