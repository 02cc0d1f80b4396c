"""Batch runs on a real Spark and Postgres: whatever dies, and whoever else runs, a run's rows are there once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from harness.errors import raises
from harness.support import CrashError, Rig, crash, failing_at, fresh, wait_until
from pyspark.sql import DataFrame, SparkSession

from onefold.core import ConfigError, DataLoss, Fenced, OnefoldError, Terminal
from onefold.sources import KafkaSource
from onefold.spark import BatchOutcome, register
from onefold.spark.errors.failures import from_spark

pytestmark = pytest.mark.servers
DELIVERIES = ["two_phase", "staged", "direct"]
WRONG: list[dict[str, str]] = [
    {"odd": "1"},
    {"pipeline": ""},
    {"patienceS": "x"},
    {"mode": "overwrite"},
    {"table": "another"},
    {"key": "id", "order": "n", "delivery": "two_phase"},
]


@pytest.fixture
def rig(spark: SparkSession, postgres_url: str, tmp_path: Path) -> Iterator[Rig]:
    """A database of the test's own, and no topic: batch runs read no Kafka."""
    with closing(Rig(spark, "127.0.0.1:1", "none", postgres_url, tmp_path)) as rig:
        yield rig


def numbers(rig: Rig, first: int, last: int) -> DataFrame:
    return rig.spark.range(first, last, 1, 3).selectExpr("id", "id * 2 AS n")


def write(rig: Rig, run: str, df: DataFrame, delivery: str = "two_phase") -> BatchOutcome:
    """As a process of its own would: a pipeline that knows nothing of the ones before."""
    with closing(rig.writer(rig.sink(delivery))) as pipeline:
        return pipeline.write_batch(df, run)


def assert_rows(rig: Rig, *spans: tuple[int, int]) -> None:
    assert rig.rows() == [(i, 2 * i) for first, last in spans for i in range(first, last)]
    rig.assert_nothing_in_doubt()


@pytest.mark.slow
def test_a_run_writes_once_however_often_and_however_much_later_it_is_run_again(rig: Rig) -> None:
    written = [write(rig, f"day {day}", numbers(rig, 10 * day, 10 * day + 10)) for day in range(3)]
    assert written == [BatchOutcome(f"day {day}", day + 1, 10, replayed=False) for day in range(3)]
    for day in (0, 2, 1):
        again = write(rig, f"day {day}", numbers(rig, 0, 1000))
        assert again == BatchOutcome(f"day {day}", day + 1, 10, replayed=True)
    assert_rows(rig, (0, 30))


@pytest.mark.slow
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_of_two_attempts_with_different_rows_the_one_that_was_decided_counts(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, delivery: str
) -> None:
    failing_at(monkeypatch, "before:Decide", crash)
    with pytest.raises(CrashError):
        write(rig, "first night", numbers(rig, 0, 20), delivery)
    assert write(rig, "first night", numbers(rig, 50, 80), delivery) == BatchOutcome("first night", 1, 30, False)
    failing_at(monkeypatch, "before:Complete", crash)
    with pytest.raises(CrashError):
        write(rig, "second night", numbers(rig, 100, 120), delivery)
    assert write(rig, "second night", numbers(rig, 150, 180), delivery) == BatchOutcome("second night", 2, 20, True)
    assert_rows(rig, (50, 80), (100, 120))


@pytest.mark.slow
@pytest.mark.parametrize(("other", "delivery"), [("night", "two_phase"), ("another night", "staged")])
def test_of_two_runs_at_once_the_later_writes_and_the_earlier_is_fenced(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, other: str, delivery: str
) -> None:
    failing_at(monkeypatch, "before:Decide", lambda: print(write(rig, other, numbers(rig, 50, 60), delivery)))
    with pytest.raises(Fenced, match=r"If run 'night' is still wanted, run it again once the other has ended"):
        write(rig, "night", numbers(rig, 0, 10), delivery)
    assert_rows(rig, (50, 60))
    assert write(rig, "night", numbers(rig, 0, 10), delivery).replayed is (other == "night")
    assert_rows(rig, *([(50, 60)] if other == "night" else [(0, 10), (50, 60)]))


@pytest.mark.slow
def test_a_zombie_that_wakes_after_its_run_was_written_by_its_successor_writes_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_at(monkeypatch, "before:ReadClock", lambda: print(write(rig, "night", numbers(rig, 0, 10))))
    with pytest.raises(Fenced):
        write(rig, "night", numbers(rig, 0, 10))
    assert_rows(rig, (0, 10))


@pytest.mark.slow
def test_a_finished_run_that_is_run_again_fences_nobody(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    write(rig, "first", numbers(rig, 0, 10))
    repeated: list[BatchOutcome] = []
    failing_at(monkeypatch, "before:Decide", lambda: repeated.append(write(rig, "first", numbers(rig, 0, 10))))
    assert not write(rig, "second", numbers(rig, 10, 20)).replayed
    assert [outcome.replayed for outcome in repeated] == [True]
    assert_rows(rig, (0, 20))


@pytest.mark.slow
def test_a_destination_that_lost_what_was_written_is_told_and_not_taken_for_written(rig: Rig) -> None:
    write(rig, "first", numbers(rig, 0, 10))
    rig.sql("DELETE FROM onefold_sinks.onefold_ledger")
    with pytest.raises(DataLoss, match="the destination was emptied"):
        write(rig, "first", numbers(rig, 0, 10))


@pytest.mark.slow
def test_a_finished_run_whose_table_was_dropped_is_told_and_not_skipped(rig: Rig) -> None:
    write(rig, "first", numbers(rig, 0, 10))
    rig.sql("DROP TABLE rows")
    with raises(DataLoss, "target-missing"):
        write(rig, "first", numbers(rig, 0, 10))


@pytest.mark.slow
def test_an_empty_run_is_written_too_and_a_query_that_fails_writes_nothing_and_may_be_mended(rig: Rig) -> None:
    assert write(rig, "empty", numbers(rig, 0, 0)) == BatchOutcome("empty", 1, 0, replayed=False)
    assert write(rig, "empty", numbers(rig, 0, 10)) == BatchOutcome("empty", 1, 0, replayed=True)
    broken = numbers(rig, 0, 10).selectExpr("id", "CASE WHEN id = 9 THEN raise_error('odd') ELSE n END AS n")
    with pytest.raises(Terminal, match=r"the job's own code failed: .*odd"):
        write(rig, "mended", broken)
    assert_rows(rig)
    assert write(rig, "mended", numbers(rig, 0, 10)).rows == 10
    assert_rows(rig, (0, 10))


@pytest.mark.slow
def test_a_store_of_its_own_remembers_runs_as_well(rig: Rig) -> None:
    for replayed in (False, True):
        with closing(rig.writer(store=rig.sqlite)) as pipeline:
            assert pipeline.write_batch(numbers(rig, 0, 10), "night").replayed is replayed
    assert_rows(rig, (0, 10))


@pytest.mark.slow
def test_one_pipeline_name_is_for_a_query_or_for_runs_and_neither_disturbs_the_other(rig: Rig) -> None:
    stream = rig.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50).load()
    df = stream.selectExpr("value AS id", "value * 2 AS n")
    with closing(rig.writer(name="query")) as pipeline, closing(rig.writer(name="query")) as batch:
        writer = df.writeStream.foreachBatch(pipeline).option("checkpointLocation", rig.checkpoint())
        query = writer.start()
        try:
            while not rig.outcomes:
                assert not query.awaitTermination(0.1), query.exception()
            generation = pipeline.facts().generation
            with pytest.raises(ConfigError, match="a streaming query has this pipeline's name"):
                batch.write_batch(numbers(rig, 0, 1), "night")
            assert pipeline.facts().generation == generation, "the query was not fenced"
        finally:
            query.stop()
    nowhere = KafkaSource("none", bootstrap_servers="127.0.0.1:1", format="raw")
    with closing(rig.writer(name="runs")) as runs, closing(rig.pipeline(name="runs", source=nowhere)) as flow:
        with pytest.raises(ConfigError, match="writes a batch DataFrame"):
            runs.write_batch(df, "night")
        runs.write_batch(numbers(rig, 0, 1), "night")
        with pytest.raises(ConfigError, match="'runs' writes batch runs"):
            flow.start(rig.spark, rig.checkpoint("second"))
        writer = df.writeStream.foreachBatch(runs).option("checkpointLocation", rig.checkpoint("second"))
        with pytest.raises(ConfigError, match="'runs' writes batch runs"):
            rig.finish(runs, writer.start())


@pytest.mark.slow
def test_the_format_writes_a_run_once_and_says_what_is_wrong(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(run: str, mode: str = "append", **more: str) -> None:
        options = {"url": rig.url, "table": "rows", "pipeline": "test", "run": run, **more}
        numbers(rig, 0, 10).write.format("onefold_postgres").options(**options).mode(mode).save()

    def fails(run: str, **more: str) -> OnefoldError:
        with pytest.raises(Exception, match=r"onefold\.core\.errors") as caught:
            save(run, **more)
        return from_spark(caught.value)

    register(rig.spark)
    save("first")
    save("first")
    assert write(rig, "first", numbers(rig, 0, 20)).replayed, "the same pipeline, and the same names"
    assert write(rig, "second", numbers(rig, 10, 20), "staged").rows == 10
    save("second")
    assert_rows(rig, (0, 20))
    assert [type(fails("third", **wrong)) for wrong in WRONG] == [ConfigError] * len(WRONG)
    failing_at(monkeypatch, "before:Decide", lambda: save("third", delivery="two_phase"))
    with pytest.raises(Fenced):
        write(rig, "fourth", numbers(rig, 20, 30))
    assert len(rig.rows()) == 30


@pytest.mark.slow
def test_the_format_alters_the_table_where_it_may_and_works_in_the_role_that_it_is_told(rig: Rig) -> None:
    role = fresh("owner")
    rig.sql(f"CREATE ROLE {role}")
    rig.sql(f"GRANT ALL ON SCHEMA public TO {role}")
    rig.sql(f"DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO {role}', current_database()); END $$")
    options = {"url": rig.url, "table": "rows", "pipeline": "test", "role": role}
    register(rig.spark)
    numbers(rig, 0, 5).write.format("onefold_postgres").options(run="1", **options).mode("append").save()
    more = numbers(rig, 5, 10).selectExpr("id", "n", "'x' AS more").write.format("onefold_postgres").options(**options)
    with pytest.raises(Exception, match="SchemaMismatch"):
        more.option("run", "2").mode("append").save()
    more.option("run", "2").option("evolve", "true").mode("append").save()
    assert rig.sql("SELECT id, n, more FROM rows ORDER BY id") == [
        (i, 2 * i, "x" if i > 4 else None) for i in range(10)
    ]
    assert rig.sql("SELECT DISTINCT tableowner::text FROM pg_tables WHERE schemaname LIKE 'onefold%'") == [(role,)]
    rig.sql(f"DROP OWNED BY {role} CASCADE")
    rig.sql(f"DROP ROLE {role}")


@pytest.mark.slow
def test_a_run_of_the_format_that_was_taken_over_decides_nothing(rig: Rig) -> None:
    """Its range is either decided by its successor, under the same name, which is as well; or it is fenced."""

    def save_while(run: str, other: str, first: int) -> None:
        waits, go = rig.directory / f"{run} waits", rig.directory / f"{run} goes"

        def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            waits.touch()
            while not go.exists():
                time.sleep(0.02)
            yield from batches

        def take_over() -> None:
            wait_until(waits.exists, "starting the first task")
            write(rig, other, numbers(rig, first, first + 10))
            go.touch()

        successor = threading.Thread(target=take_over)
        successor.start()
        options = {"url": rig.url, "table": "rows", "pipeline": "test", "run": run}
        df = rig.spark.range(0, 10, 1, 1).selectExpr("id", "id * 2 AS n").mapInArrow(wait, "id long, n long")
        try:
            df.write.format("onefold_postgres").options(**options).mode("append").save()
        finally:
            successor.join(60)

    register(rig.spark)
    save_while("night", "night", 50)
    with pytest.raises(Exception, match="was taken over") as caught:
        save_while("next", "another", 60)
    assert type(from_spark(caught.value)) is Fenced
    newest = rig.sql("SELECT max(generation) FROM onefold_sinks.onefold_pipelines")
    assert newest == [(4,)], "the fenced one took nothing back"
    write(rig, "last", numbers(rig, 70, 80), "staged")
    assert_rows(rig, (50, 80))
