"""A format of batches writes the same values as `write_batch`, or refuses the same: odd ones, and odd columns."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from harness.kafka.reading import Reader
from harness.support import fresh
from pyspark.sql import DataFrame, SparkSession

from onefold.clients.hbase import HBaseSettings, HBaseTable
from onefold.core import OnefoldError
from onefold.spark import EpochWriter, register
from onefold.spark.errors.failures import from_spark
from onefold.spark.formats.batch_writes import BatchWrites
from onefold.spark.formats.hbase_source import OnefoldHBaseDataSource
from onefold.spark.formats.kafka_source import OnefoldKafkaDataSource
from onefold.spark.formats.postgres_format import OnefoldPostgresDataSource
from onefold.spark.formats.sql_format import OnefoldSqlDataSource

pytestmark = pytest.mark.servers

VALUES = """
    SELECT id, if(id % 3 = 0, NULL, id) AS sometimes,
        CAST('-12345678901234567890.123456789012345678' AS decimal(38, 18)) * if(id % 2 = 0, 1, -1) AS exact,
        CAST('0.01' AS decimal(3, 2)) AS small, 'Grüße, "née" 🙂\\t' AS said, '' AS nothing,
        TIMESTAMP '2026-03-29 02:30:00.123456' + make_interval(0, 0, 0, 0, CAST(id AS int)) AS at,
        TIMESTAMP_NTZ '1969-12-31 23:59:59.999999' AS here, DATE '1582-10-04' AS day, X'00FF' AS bytes,
        id % 2 = 0 AS even, CAST(id AS float) / 3 AS third, -0.0D AS zero, CAST(id AS tinyint) AS tiny
    FROM range(0, 40, 1, 3)
"""
ODD = {
    "values": VALUES,
    "text with NUL": "SELECT id, concat('a', char(0)) AS said FROM range(0, 4, 1, 2)",
    "a name twice": "SELECT id, id AS n, id + 1 AS n FROM range(0, 4, 1, 2)",
    "a name in two cases": "SELECT id, id AS n, id + 1 AS N FROM range(0, 4, 1, 2)",
    "names": "SELECT id, id AS `a.b`, id AS `it''s`, id AS `x y` FROM range(0, 4, 1, 2)",
    "not a number": "SELECT id, CAST('NaN' AS double) AS n, CAST('-Infinity' AS float) AS m FROM range(0, 4, 1, 2)",
    "far dates": "SELECT id, DATE '0001-01-01' AS a, TIMESTAMP '9999-12-31 23:59:59Z' AS z FROM range(0, 4, 1, 2)",
    "nested": "SELECT id, array(id, NULL) AS l, named_struct('a', id) AS s, map('k', id) AS m FROM range(0, 4, 1, 2)",
    "an interval": "SELECT id, INTERVAL '1' DAY AS long FROM range(0, 4, 1, 2)",
    "void": "SELECT id, NULL AS none FROM range(0, 4, 1, 2)",
    "null key": "SELECT if(id = 3, NULL, id) AS id, id AS n FROM range(0, 4, 1, 2)",
    "many tasks": "SELECT id, id AS n FROM range(0, 60, 1, 50)",
}
KINDS: list[Any] = [
    "postgres",
    "kafka",
    "sqlite",
    pytest.param("hbase", marks=pytest.mark.xdist_group("hbase")),
]
Place = tuple[type[BatchWrites], Callable[[str], dict[str, str]], Callable[[str, list[str]], list[str]]]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A format, its options for a name, and what is there under that name."""
    store = {"store": f"sqlite:///{tmp_path / 'store.db'}"}
    match request.param:
        case "postgres":
            url = request.getfixturevalue("postgres_url")

            def of_postgres(name: str, _: list[str]) -> list[str]:
                with psycopg.connect(url) as connection:
                    return sorted(map(repr, connection.execute(f"SELECT * FROM {name}".encode())))

            return OnefoldPostgresDataSource, lambda name: {"url": url, "table": name}, of_postgres
        case "sqlite":
            file = f"sqlite:///{tmp_path / 'rows.db'}"

            def of_sqlite(name: str, _: list[str]) -> list[str]:
                engine = sa.create_engine(file, poolclass=sa.NullPool)
                with engine.connect() as connection:
                    return sorted(map(repr, connection.execute(sa.text(f"SELECT * FROM {name}"))))

            return OnefoldSqlDataSource, lambda name: {"url": file, "table": name}, of_sqlite
        case "kafka":
            servers = request.getfixturevalue("kafka_server").bootstrap_servers
            make, topics = request.getfixturevalue("kafka_topic"), dict[str, str]()

            def options(name: str) -> dict[str, str]:
                topics[name] = make(partitions=2)
                return {"kafka.bootstrap.servers": servers, "topic": topics[name], **store}

            def of_topic(name: str, _: list[str]) -> list[str]:
                with closing(Reader(servers, topics[name], 2)) as reader:
                    return sorted(repr(message.value()) for message in reader.read())

            return OnefoldKafkaDataSource, options, of_topic
    hbase = request.getfixturevalue("hbase_server").servers

    def of_hbase(name: str, columns: list[str]) -> list[str]:
        cells = [(b"f", column.encode()) for column in columns if column != "id"]
        parts = HBaseTable(HBaseSettings(hbase), name).scan(b"", b"", cells)
        return sorted(repr((p.keys.to_pylist(), [v.to_pylist() for v in p.values])) for p in parts)

    own = {"servers": hbase, "rowKey": "id", "family": "f", "repartition": "false", **store}
    return OnefoldHBaseDataSource, lambda name: {"table": name, **own}, of_hbase


def outcome_of(write: Callable[[], object], shown: Callable[[], list[str]]) -> list[str] | tuple[type, str]:
    try:
        write()
    except Exception as error:
        failed = error if isinstance(error, OnefoldError) else from_spark(error)
        return type(failed), failed.code
    return shown()


@pytest.mark.slow
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_a_format_writes_what_write_batch_writes_or_refuses_what_it_refuses(
    spark: SparkSession, place: Place, zone: str
) -> None:
    format_, options_of, shown = place
    register(spark)
    wrong = {}
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        for what, query in ODD.items():
            if zone != "UTC" and what not in ("values", "far dates"):
                continue
            df: DataFrame = spark.sql(query)
            columns = [field.name for field in df.schema]
            one, other = fresh("a"), fresh("b")

            def save(name: str = one, df: DataFrame = df) -> None:
                options = {**options_of(name), "pipeline": name, "run": "r"}
                df.write.format(format_.name()).options(**options).mode("append").save()

            def write(name: str = other, df: DataFrame = df) -> None:
                target = format_({**options_of(name), "pipeline": name, "run": "r"}).target()
                with closing(EpochWriter(name, [target.sink], store=target.store)) as writer:
                    writer.write_batch(df, "r")

            by_format = outcome_of(save, lambda name=one, of=columns: shown(name, of))
            by_writer = outcome_of(write, lambda name=other, of=columns: shown(name, of))
            print(what, "->", by_writer if isinstance(by_writer, tuple) else by_writer[:1])
            if by_format != by_writer:
                wrong[what] = (by_format, by_writer)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before or "UTC")
    assert wrong == {}
