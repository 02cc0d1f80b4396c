"""Epochs on Spark into SqlSink, without Kafka: files as the source."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from harness.errors import raises
from harness.support import CrashError, crash, failing_at
from pyspark.sql import SparkSession

from onefold.core import ConfigError
from onefold.sinks import SqlSink
from onefold.spark import EpochWriter
from onefold.spark.runtime.checkpoint import elsewhere
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.job.session import Session

pytestmark = pytest.mark.servers
WAIT_S = 120
UPSERT: dict[str, Any] = {"mode": "upsert", "key": ("id",), "order": ("v",), "delete_when_true": "gone"}


def put(spark: SparkSession, folder: str, low: int, high: int, rows: str) -> None:
    spark.range(low, high, numPartitions=3).selectExpr(*rows.split("; ")).write.mode("append").parquet(folder)


@pytest.mark.slow
def test_a_pipeline_that_dies_after_its_decision_goes_on_where_it_was(
    spark: SparkSession, mariadb_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, folder = SqlSink(mariadb_url, "t", **UPSERT), str(tmp_path / "files")

    def run() -> list[bool]:
        replayed: list[bool] = []
        writer = EpochWriter("p", [sink], on_outcome=lambda outcome: replayed.append(outcome.replayed), patience_s=20)
        files = spark.readStream.schema("id long, v long, gone boolean").parquet(folder)
        stream = files.writeStream.foreachBatch(writer).trigger(availableNow=True)
        query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            assert writer.await_termination(query, WAIT_S)
        finally:
            query.stop()
            writer.close()
        return replayed

    put(spark, folder, 0, 300, "id; 1L AS v; false AS gone")
    assert run() == [False]
    put(spark, folder, 100, 200, "id; 2L AS v; id % 2 = 0 AS gone")
    with monkeypatch.context() as patch:
        failing_at(patch, "after:Decide", crash)
        with pytest.raises(Exception, match=CrashError.__name__):
            run()
    assert run() == [True]
    put(spark, folder, 100, 110, "id; 1L AS v; false AS gone")
    assert run() == [False]
    engine = sa.create_engine(sink.url)
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.execute(sa.text("SELECT id, v FROM t ORDER BY id"))]
        left = connection.execute(sa.text("SELECT count(*) FROM onefold_sql_staged")).scalar_one()
    engine.dispose()
    assert found == [(i, 2 if 100 <= i < 200 else 1) for i in range(300) if not 100 <= i < 200 or i % 2]
    assert left == 0


def test_a_sqlite_file_is_refused_on_a_cluster(tmp_path: Path) -> None:
    sink = SqlSink(f"sqlite:///{tmp_path / 'rows.db'}", "t")
    assert sink.writers_max() == 1
    session = Session("p", [sink], CheckpointStore(sink.store_url() or ""), patience_s=1)
    cluster: Any = SimpleNamespace(conf={"spark.master": "spark://host:7077"})
    with raises(ConfigError, "sqlite-not-shared", "'spark://host:7077'"):
        session.check_store_reaches(elsewhere(cluster, str(tmp_path)))
    here: Any = SimpleNamespace(conf={"spark.master": "local[2]"})
    session.check_store_reaches(elsewhere(here, str(tmp_path)))
    session.close()
