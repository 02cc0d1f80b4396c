"""`python -m bench.postgres_read`: reading a Postgres table, beside Spark's JDBC reader and COPY alone. One run."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import psycopg
from pyspark.sql import DataFrame, SparkSession

from bench.arguments import parser_of
from bench.cpu import cpu_s
from bench.jars import NotAvailable, spark_jars
from onefold.local import PostgresServer
from onefold.sources import PostgresSource
from onefold.sources.postgres import plan, read
from onefold.spark import read_postgres
from onefold.spark.session import spark_session

SPLITS = 4
TABLE = "bench_read"
# The orders of the other benchmarks, and a text.
FILL = f"""
CREATE TABLE {TABLE} AS SELECT i AS id, i % 100000 AS account, (i % 1000000 / 100.0)::numeric(12,2) AS amount,
    timestamptz '2026-01-01Z' + i * interval '1 s' AS at, 'customer ' || i % 1000 AS name
FROM generate_series(1::bigint, ROWS) AS i
"""


def main() -> None:
    arguments = parser_of("bench.postgres_read", __doc__, rows=4_000_000, of="rows of the table").parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    print(f"{arguments.rows:,} rows, {SPLITS} parts, {os.cpu_count()} cores, load before {os.getloadavg()[0]:.1f}")
    with PostgresServer(arguments.directory) as server:
        _fill(server.url, arguments.rows)
        try:
            jars = {"spark.jars": ",".join(map(str, spark_jars()))}
        except NotAvailable as error:
            jars = {}
            print(f"without Spark's JDBC reader: {error}")
        spark = spark_session("onefold bench", arguments.directory / "spark", master="local[2]", **jars)
        try:
            contestants = _contestants(spark, server.url, with_jdbc=bool(jars))
            _run(contestants, server.status().pid, arguments.rows, arguments.repeat)
        finally:
            spark.stop()
    print(f"load after {os.getloadavg()[0]:.1f}")


def _run(contestants: dict[str, Callable[[], int | None]], server: int | None, rows: int, repeat: int) -> None:
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    costs: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for turn in range(repeat + 1):  # the first does not count
        for name, move in contestants.items():
            client_s, server_s = cpu_s(os.getpid()), cpu_s(server)
            started_s = time.monotonic()
            moved = move()
            assert moved in (None, rows), (name, moved)
            if turn:
                rates[name].append(rows / (time.monotonic() - started_s) / 1e6)
                used = cpu_s(os.getpid()) - client_s, cpu_s(server) - server_s
                costs[name].append((used[0] / rows * 1e6, used[1] / rows * 1e6))
    for name, found in rates.items():
        client, postgres = (statistics.median(cost) for cost in zip(*costs[name], strict=True))
        print(
            f"{name:60} {statistics.median(found):5.2f} M rows/s ({min(found):.2f} to {max(found):.2f}), "
            f"CPU us/row: {client:.2f} here, {postgres:.2f} in Postgres"
        )


def _contestants(spark: SparkSession, url: str, *, with_jdbc: bool) -> dict[str, Callable[[], int | None]]:
    source = PostgresSource(url, TABLE, splits=SPLITS)

    def in_spark() -> None:
        with source.frozen() as frozen:
            _drain(read_postgres(spark, frozen))

    def in_spark_by_key() -> None:
        with PostgresSource(url, TABLE, splits=SPLITS, split_by="id").frozen() as frozen:
            _drain(read_postgres(spark, frozen))

    def here() -> int:
        with source.frozen() as frozen:
            return sum(batch.num_rows for part in plan(frozen) for batch in read(part))

    def copy(form: str) -> int:
        with psycopg.connect(url) as connection, connection.cursor() as cursor:
            with cursor.copy(f"COPY {TABLE} TO STDOUT (FORMAT {form})".encode()) as out:
                for _ in out:
                    pass
            return cursor.rowcount

    def jdbc() -> None:
        _drain(_jdbc(spark, url))

    contestants: dict[str, Callable[[], int | None]] = {
        "read_postgres, blocks": in_spark,
        "read_postgres, split_by id (no index)": in_spark_by_key,
        "the source without Spark, one process": here,
        "psycopg COPY in csv, one process, rows thrown away": lambda: copy("csv"),
        "psycopg COPY in binary, one process, rows thrown away": lambda: copy("binary"),
    }
    if with_jdbc:
        contestants["Spark JDBC, partitionColumn id (no index), fetchsize 10,000"] = jdbc
    return contestants


def _jdbc(spark: SparkSession, url: str) -> DataFrame:
    parameters = psycopg.conninfo.conninfo_to_dict(url)
    with psycopg.connect(url) as connection:
        bounds = connection.execute(f"SELECT min(id), max(id) FROM {TABLE}".encode()).fetchone()
        password = connection.info.password
    assert bounds is not None
    options = {
        "url": f"jdbc:postgresql://{parameters['host']}:{parameters['port']}/{parameters['dbname']}",
        "user": parameters["user"],
        "password": password,
        "driver": "org.postgresql.Driver",
        "dbtable": TABLE,
        "fetchsize": 10_000,
        "partitionColumn": "id",
        "lowerBound": bounds[0],
        "upperBound": bounds[1],
        "numPartitions": SPLITS,
    }
    return spark.read.format("jdbc").options(**options).load()


def _drain(df: DataFrame) -> None:
    df.write.format("noop").mode("overwrite").save()


def _fill(url: str, rows: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {TABLE}".encode())
        connection.execute(FILL.replace("ROWS", str(rows)).encode())
        connection.execute(f"VACUUM ANALYZE {TABLE}".encode())


if __name__ == "__main__":
    main()
