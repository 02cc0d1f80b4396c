"""`onefold verify` on real servers: it calls a table exact when it is, and finds what was done to it by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from harness.definitions import named, piped
from harness.support import AVAILABLE_NOW, SCHEMA, Rig
from harness.typed_rows import typed
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.core import ConfigError, DataLoss
from onefold.pipeline import Spark
from onefold.sinks import PostgresSink
from onefold.sources import PostgresSource
from onefold.spark import read_postgres
from onefold.spark.flows.flow_writer import FlowWriter
from onefold.spark.verify.verification import Verification, compare, verify

pytestmark = pytest.mark.servers


def check(rig: Rig, pipeline: FlowWriter | None = None, **more: Any) -> Verification:
    pipeline = pipeline or rig.pipeline()
    sink = pipeline.sinks[0]
    assert isinstance(sink, PostgresSink)
    try:
        return verify(rig.spark, pipeline, sink, more.pop("key", ["id"]), **more)
    finally:
        pipeline.close()


def wrong(found: Verification) -> dict[str, int]:
    c = found.comparison
    kinds = {"lost": c.lost, "duplicated": c.duplicated, "changed": c.changed, "unexpected": c.unexpected}
    return {kind: count for kind, count in kinds.items() if count}


def broken(found: Verification) -> dict[str, tuple[str, ...]]:
    """The invariants that do not hold, and why."""
    return {name: texts for name, texts in found.invariants.items() if texts}


@pytest.mark.slow
def test_an_exact_table_is_exact_and_every_change_by_hand_is_found_and_counted(rig: Rig) -> None:
    rig.put(600)
    rig.run(rig.pipeline())
    found = check(rig)
    assert found.is_exact
    assert (found.comparison.expected, found.comparison.actual, found.epochs) == (600, 600, 2)

    rig.sql("DELETE FROM rows WHERE id IN (5, 6)")
    rig.sql("INSERT INTO rows SELECT * FROM rows WHERE id = 7")
    rig.sql("UPDATE rows SET n = NULL WHERE id = 8")
    rig.sql("INSERT INTO rows VALUES (9999, 1), (NULL, 1)")
    found = check(rig)
    assert not found.is_exact
    assert wrong(found) == {"lost": 2, "duplicated": 1, "changed": 1, "unexpected": 2}
    assert {name: len(texts) for name, texts in broken(found).items()} == {
        "no-loss": 2,
        "no-duplicate": 1,
        "fenced-never-decides": 1,
    }
    samples = found.comparison.samples

    def at(number: int) -> str:
        return f"{rig.topic}/{number % 4} at offset {number // 4}"

    assert sorted(samples["lost"]) == [f"id={id_} (expected 1, found 0): from {at(id_)}" for id_ in (5, 6)]
    assert samples["duplicated"] == [f"id=7 (expected 1, found 2): from {at(7)}"]
    assert samples["changed"] == [f"id=8 (expected 1, found 1): n is null, and was to be 64; from {at(8)}"]
    assert sorted(samples["unexpected"]) == ["id=9999 (expected 0, found 1)", "id=null (expected 0, found 1)"]


@pytest.mark.slow
def test_a_query_that_was_stopped_a_moment_ago_is_verified_once_its_last_epoch_is_complete(rig: Rig) -> None:
    rig.put(100)
    pipeline = rig.pipeline()
    query = pipeline.start(rig.spark, rig.checkpoint(), AVAILABLE_NOW)
    query.processAllAvailable()
    query.stop()
    assert check(rig, pipeline).is_exact  # its driver lives on


@pytest.mark.soak
def test_what_came_after_the_ledger_is_not_expected_yet_not_even_in_a_new_partition(rig: Rig) -> None:
    rig.put(300)
    rig.run(rig.pipeline())
    admin = AdminClient({"bootstrap.servers": rig.servers, "log_level": 0})
    admin.create_partitions([NewPartitions(rig.topic, 5)])[rig.topic].result(30)
    rig.put_values([b'{"id":1000}'] * 5, partitions=5)
    assert check(rig).is_exact


@pytest.mark.slow
def test_deleted_source_records_are_data_loss_and_not_a_verdict(rig: Rig) -> None:
    rig.put(300)
    rig.run(rig.pipeline())
    admin = AdminClient({"bootstrap.servers": rig.servers, "log_level": 0})
    for deleted in admin.delete_records([TopicPartition(rig.topic, 0, 10)]).values():
        deleted.result(30)
    with pytest.raises(DataLoss, match="deleted everything before 10"):
        check(rig)


@pytest.mark.slow
def test_a_leftover_prepared_transaction_of_the_pipeline_is_reported_as_in_doubt(rig: Rig) -> None:
    rig.put(100)
    rig.run(rig.pipeline())
    gid = f"of/test/rows/1/7/{'0' * 31}1"
    rig.sql(f"BEGIN; INSERT INTO rows VALUES (1, 1); PREPARE TRANSACTION '{gid}'")
    found = check(rig)
    assert not found.is_exact
    assert wrong(found) == {}
    assert broken(found) == {"nothing-in-doubt": (f"rows still holds {gid} of epoch 7",)}
    rig.run(rig.pipeline())
    assert check(rig).is_exact


@pytest.mark.slow
def test_a_broken_chain_is_reported(rig: Rig) -> None:
    rig.put(600)
    rig.run(rig.pipeline())
    rig.sql("UPDATE onefold_sinks.onefold_epochs SET range_start = replace(range_start, ':75', ':70') WHERE epoch = 2")
    (text,) = broken(check(rig)).pop("chain")
    assert text.startswith("epoch 2 does not start where epoch 1 ended: ")
    rig.sql("UPDATE onefold_sinks.onefold_epochs SET range_start = replace(range_start, ':70', ':75') WHERE epoch = 2")
    rig.sql("UPDATE onefold_sinks.onefold_ledger SET epoch = 1")
    assert broken(check(rig)) == {"chain": ("rows's ledger stands at epoch 1, the store at 2",)}
    rig.sql("UPDATE onefold_sinks.onefold_ledger SET epoch = 2")
    (other,) = broken(check(rig, rig.pipeline(store=rig.sqlite))).pop("chain")
    assert other.startswith("rows's ledger belongs to checkpoint store ")


@pytest.mark.soak
def test_a_table_whose_store_was_adopted_is_compared_from_the_sources_first_record(rig: Rig) -> None:
    rig.put(300)
    rig.run(rig.pipeline())
    rig.sql("DROP TABLE onefold_sinks.onefold_store, onefold_sinks.onefold_pipelines, onefold_sinks.onefold_epochs")
    rig.put(100)
    pipeline = rig.pipeline(source=rig.source(starting_offsets="ledger"))
    pipeline.recover(adopt_ledger=True)
    rig.run(pipeline, "second")
    assert check(rig).is_exact
    rig.sql("DELETE FROM rows WHERE id = 3")
    assert wrong(check(rig)) == {"lost": 1}


@pytest.mark.slow
def test_a_pipeline_or_table_that_is_not_there_is_a_clear_error(rig: Rig) -> None:
    rig.put(10)
    rig.run(rig.pipeline())
    with pytest.raises(ConfigError, match=r"no ledger for pipeline 'unknown'.*Check the"):
        check(rig, rig.pipeline(name="unknown"))
    with pytest.raises(ConfigError, match="not: \\['nr'\\]"):
        check(rig, key=["nr"])
    rig.sql("ALTER TABLE rows RENAME n TO m")
    with pytest.raises(ConfigError, match="table rows has no column 'n'"):
        check(rig)
    rig.sql("DROP TABLE rows")
    with pytest.raises(ConfigError, match="no table rows"):
        check(rig)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Shop.Orders", '"odd.schema"."odd.table"'])
def test_a_table_in_a_schema_is_verified_whatever_its_name_holds(rig: Rig, name: str) -> None:
    schema = name.rpartition(".")[0] if "odd" not in name else '"odd.schema"'
    rig.sql(f"CREATE SCHEMA {schema if schema.startswith(chr(34)) else chr(34) + schema + chr(34)}")
    rig.put(100)
    rig.run(rig.pipeline(rig.sink(table=name)))
    found = check(rig, rig.pipeline(rig.sink(table=name)))
    assert found.is_exact
    assert found.comparison.actual == 100


def written(rig: Rig, df: DataFrame) -> DataFrame:
    """What verification reads of `df` after it went through the sink."""
    df.write.mode("overwrite").parquet(str(rig.directory / "typed"))
    stream = rig.spark.readStream.schema(df.schema).parquet(str(rig.directory / "typed"))
    writer = rig.writer()
    rig.finish(writer, rig.start(writer, stream))
    writer.close()
    return read_postgres(rig.spark, PostgresSource(rig.url, "rows", narrowing="check"), df.schema)


@pytest.mark.slow
def test_every_type_compares_exactly_nulls_and_nested_ones_too(rig: Rig) -> None:
    df = typed(rig.spark)
    table = written(rig, df)
    result = compare(df, table, ["id"])
    assert (result.expected, result.actual) == (4, 4)
    if result.changed:
        pytest.fail("\n".join(str(pair) for pair in zip(df.collect(), table.orderBy("id").collect(), strict=True)))
    assert result.lost == result.duplicated == result.unexpected == 0


CHANGES: list[tuple[str, str, str]] = [
    ("array<int>", "array(1, null)", "array(null, 1)"),
    ("array<int>", "array(1, null)", "array(1)"),
    ("array<array<int>>", "array(array(1), array(2))", "array(array(1, 2))"),
    ("struct<a: int, b: int>", "struct(null, 1)", "struct(1, null)"),
    ("map<string, int>", "map('a', 1, 'b', 2)", "map('a', 2, 'b', 1)"),
    ("map<string, int>", "map('a', null)", "map()"),
    ("array<map<string, int>>", "array(map('a', 1))", "array(map('b', 1))"),
    ("string", "''", "null"),
]


@pytest.mark.slow
def test_differences_inside_nested_values_and_between_null_and_empty_are_seen(spark: SparkSession) -> None:
    def side(which: int) -> DataFrame:
        columns = [f"CAST({change[which]} AS {change[0]}) AS c{n}" for n, change in enumerate(CHANGES)]
        return spark.sql(f"SELECT 1 AS id, {', '.join(columns)}")

    before, after = side(1).persist(), side(2).persist()
    for number in range(len(CHANGES)):
        some = ["id", f"c{number}"]
        assert compare(before.select(some), after.select(some), ["id"]).changed == 1, CHANGES[number]
    assert compare(before, before, ["id"]).changed == 0
    same_map = spark.sql("SELECT 1 AS id, map('a', 1, 'b', 2) AS m")
    assert compare(same_map, spark.sql("SELECT 1 AS id, map('b', 2, 'a', 1) AS m"), ["id"]).changed == 0


@pytest.mark.slow
def test_rows_of_nulls_only_views_partitions_and_long_values_are_read_whole(rig: Rig) -> None:
    rig.sql("CREATE TABLE rows (id bigint, s text) PARTITION BY LIST (id)")
    rig.sql("CREATE TABLE rows_1 PARTITION OF rows FOR VALUES IN (1)")
    rig.sql("CREATE TABLE rows_other PARTITION OF rows DEFAULT")
    rig.sql("INSERT INTO rows VALUES (1, repeat('x', 3000000)), (2, 'y'), (NULL, NULL)")
    rig.sql("CREATE VIEW seen AS SELECT * FROM rows")
    for table in ("rows", "seen"):
        df = read_postgres(rig.spark, PostgresSource(rig.url, table), "id long, s string")
        lengths = sorted(df.selectExpr("coalesce(id, 0)", "length(s)").collect())
        assert [tuple(row) for row in lengths] == [(0, None), (1, 3_000_000), (2, 1)]
        ids = read_postgres(rig.spark, PostgresSource(rig.url, table), "id long")
        assert ids.count() == 3


@pytest.mark.slow
def test_the_command_exits_0_on_an_exact_table_and_1_on_another_and_writes_json_and_a_page(
    rig: Rig, tmp_path: Path
) -> None:
    rig.put(100)
    sink = rig.sink(name="big")
    rig.run(rig.pipeline(sink))
    pipeline = named(piped("test", source=rig.source(), sinks=[sink]))
    page = tmp_path / "report.html"
    exact = CliRunner().invoke(app, ["verify", pipeline, "--key=id,n", f"--html={page}"])
    assert exact.exit_code == 0, exact.output
    assert f"The report: {page}" in exact.stderr
    for said in ("onefold verify: test", ">exact<", '<td data-label="epochs"><div>1</div>', "<div>0 records</div>"):
        assert said in page.read_text(), said
    assert "big: exact" in exact.output
    for name in ("no-loss", "no-duplicate", "chain", "resolve-once", "fenced-never-decides", "nothing-in-doubt"):
        assert name in exact.output

    rig.sql("DELETE FROM rows WHERE id % 2 = 0")
    other = CliRunner().invoke(app, ["verify", pipeline, "--key=id,n", "--sink=big", "--json", f"--html={page}"])
    assert other.exit_code == 1, other.output
    answer = json.loads(other.stdout)
    result = answer["sinks"]["big"]
    for said in (">NOT exact<", '<dt>lost</dt><dd class="bad">50</dd>', *result["comparison"]["samples"]["lost"]):
        assert said in page.read_text(), said
    assert (answer["exact"], result["exact"], result["comparison"]["lost"]) == (False, False, 50)
    assert [name for name, texts in result["invariants"].items() if texts] == ["no-loss"]
    sql = "SELECT id, n FROM source WHERE id % 2 = 1"
    odd = piped("test", source=rig.source(), sinks=[sink], change=lambda s: s.spark_sql(sql, schema=SCHEMA))
    filtering = named(odd)
    filtered = CliRunner().invoke(app, ["verify", filtering, "--key=id,n"])
    assert filtered.exit_code == 0, filtered.output


@pytest.mark.slow
def test_the_command_verifies_each_sink_in_turn_and_one_that_is_wrong_is_enough(rig: Rig) -> None:
    sinks = [rig.sink(), rig.sink("staged", table="newest", mode="upsert", key="id", order="n")]
    pipeline = piped(
        "test",
        source=rig.source(),
        sinks=sinks,
        change=lambda rows: rows.spark_dataframe(lambda df: df.where("id % 2 = 0"), schema=SCHEMA),
        checkpoint=rig.checkpoint(),
        runtime=Spark(session=rig.spark, available_now=True),
    )
    rig.put(100)
    pipeline.run()
    rig.sql("DELETE FROM newest WHERE id = 4")
    for given, counts in (([], {"rows": 0, "newest": 1}), (["--sink=rows"], {"rows": 0}), (["--sink=newest"], None)):
        answer = CliRunner().invoke(app, ["verify", named(pipeline), "--key=id", "--json", *given])
        found = json.loads(answer.stdout)
        lost = {name: result["comparison"]["lost"] for name, result in found["sinks"].items()}
        assert lost == (counts or {"newest": 1})
        assert (answer.exit_code, found["exact"]) == ((1, False) if any(lost.values()) else (0, True))


@pytest.mark.slow
def test_the_command_verifies_groups_that_are_kept_up_to_date(rig: Rig) -> None:
    sql = "SELECT n % 10 AS g, count(*) AS many, sum(id) AS ids FROM source GROUP BY n % 10"
    pipeline = piped(
        "test",
        source=rig.source(at_most=200),
        sinks=[rig.sink("staged", table="totals", mode="upsert", key="g", order="onefold_epoch")],
        change=lambda rows: rows.spark_sql(sql, schema="g long, many long, ids long", output_mode="update"),
        checkpoint=rig.checkpoint(),
        runtime=Spark(session=rig.spark, available_now=True),
    )
    rig.put(500)
    pipeline.run()
    exact = CliRunner().invoke(app, ["verify", named(pipeline), "--json"])
    assert exact.exit_code == 0, exact.output
    rig.sql("UPDATE totals SET many = many + 1 WHERE g = 4")
    rig.sql("DELETE FROM totals WHERE g = 6")
    other = CliRunner().invoke(app, ["verify", named(pipeline), "--json"])
    assert other.exit_code == 1, other.output
    comparison = json.loads(other.stdout)["sinks"]["totals"]["comparison"]
    assert (comparison["changed"], comparison["lost"], comparison["unexpected"]) == (1, 1, 0)
