"""Parts of flows that Spark treats in its own way: one writer behind state, bad records, timers that are put off."""

from __future__ import annotations

from typing import Any

import harness.flow_job
import pytest
import sqlalchemy as sa
from harness.errors import raises
from harness.flow_job import Numbering, Quiet
from harness.support import Rig
from pyspark.cloudpickle import register_pickle_by_value

from onefold.core import BadRecord
from onefold.flow import Flow
from onefold.sinks import SqlSink

pytestmark = [pytest.mark.servers, pytest.mark.slow]

register_pickle_by_value(harness.flow_job)  # Spark's workers do not find it

WAIT_S = 300
SCHEMA = "id long, account long"
NUMBERS = "id long, account long, number long"


@pytest.fixture(autouse=True)
def _tasks(rig: Rig) -> None:
    rig.spark.conf.set("spark.sql.shuffle.partitions", "3")


def put(rig: Rig, first: int, stop: int) -> None:
    """Each account's records are in one partition, so that they have an order."""
    rig.put_values([b'{"id":%d,"account":%d}' % (i, i % 8) for i in range(first, stop)])


def run(rig: Rig, flow: Flow, checkpoint: str = "checkpoint") -> None:
    query = flow.start(rig.spark, checkpoint=rig.checkpoint(checkpoint), trigger={"availableNow": True})
    rig.pipelines.append(query.writer)
    try:
        assert query.await_termination(WAIT_S)
    finally:
        query.writer.close()


def numbered(first: int, stop: int) -> list[tuple[int, int, int]]:
    return [(i, i % 8, i // 8 + 1) for i in range(first, stop)]


def test_state_behind_which_one_writer_takes_all_rows_is_kept_by_its_own_tasks(rig: Rig) -> None:
    url = f"sqlite:///{rig.directory / 'rows.db'}"
    assert SqlSink(url, "numbers").writers_max() == 1

    def flow() -> Flow:
        flow = Flow("numbers")
        records = flow.source(rig.source(schema=SCHEMA, at_most=100), uid="records")
        numbers = records.key_by("account").process(Numbering(), NUMBERS, uid="numbers")
        numbers.sink(SqlSink(url, "numbers", name="file"))
        numbers.sink(rig.sink(table="numbers"))
        return flow

    for first, stop in ((0, 200), (200, 400)):
        put(rig, first, stop)
        run(rig, flow())
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        found = connection.execute(sa.text("SELECT id, account, number FROM numbers ORDER BY id")).fetchall()
    engine.dispose()
    assert [tuple(row) for row in found] == numbered(0, 400)
    assert rig.sql("SELECT id, account, number FROM numbers ORDER BY id") == numbered(0, 400)
    rig.assert_nothing_in_doubt()


def lettered(rig: Rig, table: str, *, keyed: bool, bad_max: int) -> Flow:
    flow = Flow(table)
    source = rig.source(schema=SCHEMA, at_most=100, on_error="dead_letter", bad_records_max=bad_max)
    records = flow.source(source, uid="records", dead_letters=rig.sink(table=f"{table}_letters"))
    if keyed:
        records.key_by("account").process(Numbering(), NUMBERS, uid="numbers").sink(rig.sink(table=table))
    else:
        records.sink(rig.sink(table=table))
    return flow


@pytest.mark.parametrize("keyed", [False, True])
def test_bad_records_become_dead_letters_of_the_epoch_and_too_many_stop_it(rig: Rig, keyed: bool) -> None:
    table, bad = "keyed" if keyed else "plain", [b'{"id":"bad %d"}' % number for number in range(9)]
    put(rig, 0, 80)
    rig.put_values(bad[:4])
    run(rig, lettered(rig, table, keyed=keyed, bad_max=4))

    def letters() -> list[bytes]:
        return [bytes(value) for (value,) in rig.sql(f"SELECT value FROM {table}_letters ORDER BY value")]

    def rows() -> list[tuple[Any, ...]]:
        return rig.sql(f"SELECT * FROM {table} ORDER BY id")

    expected = numbered if keyed else lambda first, stop: [(i, i % 8) for i in range(first, stop)]
    assert letters() == bad[:4] and rows() == expected(0, 80)
    rig.put_values(bad[4:])
    put(rig, 80, 160)
    with raises(BadRecord, "too-many-bad-records"):
        run(rig, lettered(rig, table, keyed=keyed, bad_max=4))
    assert letters() == bad[:4] and rows() == expected(0, 80)
    run(rig, lettered(rig, table, keyed=keyed, bad_max=5))
    assert letters() == bad and rows() == expected(0, 160)
    rig.assert_nothing_in_doubt()


def test_spark_keeps_one_timer_of_a_key_group_however_often_it_is_put_off(rig: Rig) -> None:
    flow = Flow("quiet", max_parallelism=2)
    records = flow.source(rig.source(schema=SCHEMA, at_most=40), uid="records")
    records.key_by("account").process(Quiet(), NUMBERS, uid="quiet").sink(rig.sink())
    put(rig, 0, 200)
    run(rig, flow)
    assert rig.sql("SELECT count(*), min(number), max(number) FROM rows") == [(200, 1, 1)]
    store = rig.spark.read.format("statestore").option("readRegisteredTimers", True)
    timers = store.load(rig.checkpoint()).collect()
    assert len(timers) == len({row.key for row in timers}) == 2
