"""An operator of a flow that Spark itself runs: exact, compared with what was declared, its state kept."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow.compute as pc
import pytest
from harness.aggregating_job import aggregated, expected_changes, expected_windows, purchases
from harness.errors import raises
from harness.support import CrashError, Rig, crash, failing_at
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onefold.core import BadRecord, CheckpointMismatch, ConfigError, Terminal
from onefold.flow import Flow
from onefold.sinks import PostgresSink

pytestmark = [pytest.mark.servers, pytest.mark.slow]

WAIT_S = 300
ZONE = "spark.sql.session.timeZone"
PURCHASES = "at long, account long, amount long"
TOTALS = "start long, account long, n long, total long"
NUMBERS = "id long, n long"


@pytest.fixture(autouse=True)
def _tasks(rig: Rig) -> None:
    rig.spark.conf.set("spark.sql.shuffle.partitions", "3")


def run(rig: Rig, flow: Flow, checkpoint: str = "checkpoint") -> list[tuple[int, int] | None]:
    """What has passed by each edge of its graph."""
    query = flow.start(rig.spark, checkpoint=rig.checkpoint(checkpoint), trigger={"availableNow": True})
    rig.pipelines.append(query.writer)
    try:
        assert query.await_termination(WAIT_S)
    finally:
        query.query.stop()
        query.writer.close()
    return query.writer.traffic


def selected(rig: Rig, sql: str = "SELECT id, n FROM source WHERE n > 500", schema: str = NUMBERS) -> Flow:
    flow = Flow("selected")
    records = flow.source(rig.source(at_most=100), uid="records")
    records.filter(pc.field("n") != 700).spark_sql(sql, schema=schema).sink(rig.sink())
    return flow


def windows(rig: Rig, kind: str, **more: Any) -> Flow:
    """Totals of windows: those that are over, or all that change."""
    flow = Flow("totals")
    records = flow.source(rig.source(at_most=120, schema=PURCHASES, **more), uid="purchases")
    if kind == "windows":
        rows = records.spark_dataframe(lambda df: aggregated(df, "windows"), TOTALS)
        rows.sink(PostgresSink(rig.url, "totals"))
    else:
        rows = records.spark_dataframe(lambda df: aggregated(df, "changes"), TOTALS, output_mode="update")
        key = ("start", "account")
        rows.sink(PostgresSink(rig.url, "totals", mode="upsert", key=key, order="onefold_epoch"))
    return flow


def put(rig: Rig, start: int, stop: int) -> None:
    rig.put_values([each.value() for each in purchases(start, stop)])


def totals(rig: Rig) -> list[tuple[Any, ...]]:
    return rig.sql("SELECT start, account, n, total FROM totals ORDER BY 1, 2")


def tables(rig: Rig) -> list[tuple[Any, ...]]:
    """All that is in the database."""
    return rig.sql("SELECT relname FROM pg_stat_user_tables ORDER BY 1")


def test_a_select_of_sparks_sql_is_written_exactly(rig: Rig) -> None:
    rig.spark.range(3).createOrReplaceTempView("source")  # the user's own
    for _ in range(2):
        rig.put(300)
        run(rig, selected(rig))
    assert rig.rows() == [(i, n) for i, n in rig.sent if n > 500 and n != 700]
    assert rig.sql("SELECT count(*) FROM onefold_sinks.onefold_epochs WHERE state = 'complete'") == [(6,)]
    assert rig.spark.sql("SELECT count(*) FROM source").first() == (3,)
    rig.spark.catalog.dropTempView("source")
    rig.assert_nothing_in_doubt()


def test_rows_are_rebalanced_and_united_before_it_and_go_to_several_sinks(rig: Rig) -> None:
    flow = Flow("several")
    records = flow.source(rig.source(at_most=100), uid="records")
    small, large = records.filter(pc.field("n") < 500), records.filter(pc.field("n") >= 500)
    rows = small.union(large.rebalance()).rebalance().spark_sql("SELECT n, id FROM source", schema="n long, id long")
    rows.sink(rig.sink())
    rows.sink(rig.sink(table="again"))
    rig.put(300)
    passed = run(rig, flow)
    rig.assert_exact()
    rig.assert_exact("again")
    assert [each and each[0] for each in passed] == [None] * (len(passed) - 2) + [300, 300]


@pytest.mark.parametrize("kind", ["windows", "changes"])
@pytest.mark.parametrize("place", ["before:Decide", "after:Decide"])
def test_an_aggregation_of_sparks_is_exact_through_a_crash(
    rig: Rig, kind: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = expected_windows if kind == "windows" else expected_changes
    put(rig, 0, 240)
    run(rig, windows(rig, kind))
    assert totals(rig) == expected(purchases(0, 240))
    put(rig, 240, 480)
    with monkeypatch.context() as patched:
        failing_at(patched, place, crash)
        with pytest.raises(Terminal, match=CrashError.__name__):
            run(rig, windows(rig, kind))
    run(rig, windows(rig, kind))
    assert totals(rig) == expected(purchases(0, 480))
    rig.assert_nothing_in_doubt()


def test_an_aggregation_whose_checkpoint_is_lost_is_refused(rig: Rig) -> None:
    put(rig, 0, 240)
    run(rig, windows(rig, "windows"))
    written = totals(rig)
    put(rig, 240, 360)
    with raises(CheckpointMismatch, "positions-not-comparable"):
        run(rig, windows(rig, "windows"), "new")
    with raises(CheckpointMismatch, "state-missing"):
        run(rig, windows(rig, "windows", starting_offsets="ledger"), "third")
    assert totals(rig) == written
    run(rig, windows(rig, "windows"))
    assert totals(rig) == expected_windows(purchases(0, 360))


def test_rows_that_come_twice_are_dropped_by_sparks_own_state(rig: Rig) -> None:
    flow = Flow("once")
    records = flow.source(rig.source(at_most=100), uid="records")

    def once(df: DataFrame) -> DataFrame:
        at = F.timestamp_seconds(F.col("id") + 1)  # what is not after 1970's begin, the first watermark, is late
        timed = df.withColumn("at", at).withWatermark("at", "1 hour")
        return timed.dropDuplicatesWithinWatermark(["id"]).select("id", "n")

    records.spark_dataframe(once, schema=NUMBERS).sink(rig.sink())
    rig.put(150)
    rig.put_values([b'{"id":%d,"n":%d}' % record for record in rig.sent])
    run(rig, flow)
    rig.assert_exact()


@pytest.mark.parametrize(
    ("sql", "schema", "names"),
    [
        ("SELECT id, n FROM source", "id long, n int", ["column 2 is declared n int, and is n bigint"]),
        ("SELECT n, id FROM source", NUMBERS, ["column 1 is declared id bigint, and is n bigint", "column 2"]),
        ("SELECT id, n FROM source", "id long, N long", ["column 2 is declared N bigint, and is n bigint"]),
        ("SELECT id FROM source", NUMBERS, ["column 2 is declared n bigint, and is not made"]),
        ("SELECT id, n, n FROM source", NUMBERS, ["column 3 is declared not at all, and is n bigint"]),
        ("SELECT id, sum(id) n FROM source GROUP BY id", "id long, n decimal(38,0)", ["declared n decimal(38,0)"]),
        (
            "SELECT id, array(struct(n AS N)) n FROM source",
            "id long, n array<struct<n: long>>",
            ["n array<struct<N: bigint>>"],
        ),
    ],
)
def test_other_columns_than_were_declared_are_refused_before_anything_is_taken_over(
    rig: Rig, sql: str, schema: str, names: list[str]
) -> None:
    with raises(ConfigError, "spark-operator-schema", *names):
        run(rig, selected(rig, sql, schema))
    assert tables(rig) == []


@pytest.mark.parametrize(
    ("sql", "schema", "code"),
    [
        ("SELECT id, m FROM source", NUMBERS, "transform-sql-invalid"),
        ("SELECT 1L AS id, 2L AS n", NUMBERS, "transform-failed"),
        ("SELECT id, count(*) AS n FROM source GROUP BY id", NUMBERS, "query-refused"),
        ("SELECT id, parse_json('1') AS n FROM source", NUMBERS, "type-unsupported"),
        ("SELECT id, make_interval(1, 2) AS n FROM source", NUMBERS, "type-unsupported"),
        ("SELECT id, INTERVAL '1' DAY AS n FROM source", NUMBERS, "spark-operator-schema"),
    ],
)
def test_what_spark_does_not_run_is_refused_before_anything_is_taken_over(
    rig: Rig, sql: str, schema: str, code: str
) -> None:
    with raises(ConfigError, code):
        run(rig, selected(rig, sql, schema))
    assert tables(rig) == []


def test_a_sink_that_cannot_replace_rows_is_refused_before_anything_is_taken_over(rig: Rig) -> None:
    flow = Flow("totals")
    records = flow.source(rig.source(schema=PURCHASES), uid="purchases")
    rows = records.spark_dataframe(lambda df: aggregated(df, "changes"), TOTALS, output_mode="update")
    rows.sink(PostgresSink(rig.url, "totals"))
    with raises(ConfigError, "update-into-appends"):
        run(rig, flow)
    assert tables(rig) == []


@pytest.mark.parametrize("of_an_aggregation", [False, True])
def test_bad_records_are_dead_letters_of_the_same_epoch_and_too_many_stop_it(
    rig: Rig, of_an_aggregation: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flow(bad_max: int) -> Flow:
        flow = Flow("lettered")
        source = rig.source(at_most=100, on_error="dead_letter", bad_records_max=bad_max)
        records = flow.source(source, uid="records", dead_letters=rig.sink(table="letters"))
        if of_an_aggregation:
            sql = "SELECT id, max(n) AS n FROM source GROUP BY id"
            sink = rig.sink(mode="upsert", key="id", order="onefold_epoch")
            records.spark_sql(sql, NUMBERS, "update").sink(sink)
        else:
            records.spark_sql("SELECT * FROM source", NUMBERS).sink(rig.sink())
        return flow

    def letters() -> list[bytes]:
        return [bytes(value) for (value,) in rig.sql("SELECT value FROM letters ORDER BY value")]

    bad = [b'{"id":"bad %d"}' % number for number in range(9)]
    rig.put(80)
    rig.put_values(bad[:4])
    with monkeypatch.context() as patched:
        failing_at(patched, "before:Decide", crash)
        with pytest.raises(Terminal, match=CrashError.__name__):
            run(rig, flow(4))
    passed = [each[0] for each in run(rig, flow(4)) if each is not None]
    assert letters() == bad[:4] and sorted(passed) == [4, 80]
    rig.assert_exact()
    rig.put_values(bad[4:])
    rig.put(80)
    with raises(BadRecord, "too-many-bad-records"):
        run(rig, flow(4))
    assert letters() == bad[:4]
    run(rig, flow(5))
    assert letters() == bad
    rig.assert_exact()


VALUES = """id long, cents decimal(38,18), at timestamp, local timestamp_ntz, day date, `a.b` string,
    tags array<string>, one struct<At: timestamp, amounts: array<decimal(5,3)>>,
    raw binary"""
RECORD = b"""{"id": %d, "cents": 12345678901234567890.123456789012345678, "at": "%s",
"local": "2025-10-26T02:30:00.000001", "day": "1582-10-10", "a.b": "\\u00e4", "tags": ["x", null],
"one": {"At": "%s", "amounts": [-1.005, null]}, "raw": "AAE="}"""
TIMES = ["2025-10-26T00:30:00Z", "2025-10-26T01:30:00Z", "2026-03-29T00:59:59.999999Z", "1969-12-31T23:59:59.000001Z"]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_values_of_every_type_come_through_as_they_are(rig: Rig, zone: str) -> None:
    before = str(rig.spark.conf.get(ZONE))

    def flow(name: str) -> Flow:
        flow = Flow(name)
        stream: Any = flow.source(rig.source(schema=VALUES, at_most=None), uid="records")
        rows = stream.spark_sql("SELECT * FROM source", schema=VALUES) if name == "on_spark" else stream
        rows.sink(PostgresSink(rig.url, name))
        return flow

    rig.put_values([RECORD % (number, at.encode(), at.encode()) for number, at in enumerate(TIMES)])
    rig.spark.conf.set(ZONE, zone)
    try:
        run(rig, flow("on_spark"), "on_spark")
        run(rig, flow("ours"), "ours")
    finally:
        rig.spark.conf.set(ZONE, before)
    found = rig.sql("SELECT * FROM on_spark ORDER BY id")
    assert found == rig.sql("SELECT * FROM ours ORDER BY id")
    columns = "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s ORDER BY 1"
    assert rig.sql(columns, "on_spark") == rig.sql(columns, "ours")
    assert [row[2] for row in found] == [dt.datetime.fromisoformat(text) for text in TIMES]
    assert {row[1] for row in found} == {Decimal("12345678901234567890.123456789012345678")}
    assert {row[3] for row in found} == {dt.datetime(2025, 10, 26, 2, 30, 0, 1)}
    assert {row[4] for row in found} == {dt.date(1582, 10, 10)}


def test_names_that_differ_in_case_stay_apart(rig: Rig) -> None:
    flow = Flow("cases")
    records = flow.source(rig.source(), uid="records").with_columns(ID=pc.field("n"))
    rows = records.spark_dataframe(lambda df: df.toDF("id", "n", "ID"), schema="id long, n long, ID long")
    rows.sink(rig.sink())
    rig.put(100)
    run(rig, flow)
    assert rig.sql('SELECT id, n, "ID" FROM rows ORDER BY id') == [(i, n, n) for i, n in rig.sent]
