"""Tables as sources of a flow, on either runtime: read whole, in one epoch, exactly, whatever ends the driver."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import harness.flow_job
import psycopg
import pyarrow as pa
import pytest
from harness.errors import raises
from harness.flow_job import FlowJob
from harness.flows import Flows
from harness.support import CrashError, Rig, crash, failing_at
from pyspark.cloudpickle import register_pickle_by_value

from onefold.clients.hbase import HBaseSettings, HBaseTable
from onefold.clients.hbase.rows.mapping import TableMapping
from onefold.clients.hbase.table_admin import ColumnFamily, create
from onefold.core import ConfigError, DataLoss
from onefold.engine import Restart
from onefold.flow import Flow
from onefold.sinks import HBaseSink, KafkaSink, PostgresSink
from onefold.sources import HBaseSource, PostgresSource

pytestmark = [pytest.mark.servers, pytest.mark.slow]

RUNTIMES = pytest.mark.parametrize("runtime", ["engine", "spark"])
UNDECIDED, DECIDED = "before:Decide", "after:Decide"
WAIT_S = 300
SPLITS = [(2**63 + n).to_bytes(8, "big") for n in (200, 400)]  # of keys that are integers
COLUMNS = "id bigint, account bigint, n bigint"


register_pickle_by_value(harness.flow_job)  # Spark's workers do not find it


@dataclass(frozen=True)
class Runs:
    """Runs jobs to their end, and begins some that do not come there: the engine's processes are killed, and on Spark,
    in this process, the driver's side raises what nobody handles."""

    flows: Flows
    rig: Rig

    def end_at(self, job: FlowJob, place: str) -> None:
        if job.runtime == "spark":
            with pytest.MonkeyPatch.context() as patch:
                failing_at(patch, place, crash)
                with pytest.raises(Exception, match=CrashError.__name__):
                    self.on_spark(job.flow(), job.checkpoint, trigger={"availableNow": True})
            return
        process = self.flows.start(job, f"{place}#1")
        process.held()
        process.kill()

    def finish(self, job: FlowJob) -> None:
        if job.runtime == "spark":
            self.on_spark(job.flow(), job.checkpoint, trigger={"availableNow": True})
        else:
            self.flows.finish(job)

    def on_spark(self, flow: Flow, checkpoint: str, **more: Any) -> None:
        self.rig.spark.conf.set("spark.sql.shuffle.partitions", "2")
        query = flow.start(self.rig.spark, checkpoint=checkpoint, **more)
        self.rig.pipelines.append(query.writer)
        try:
            assert query.await_termination(WAIT_S)
        finally:
            query.query.stop()
            query.writer.close()


@pytest.fixture
def runs(flows: Flows, rig: Rig) -> Runs:
    return Runs(flows, rig)


def change(flows: Flows, statement: str) -> None:
    with psycopg.connect(flows.url, autocommit=True) as connection:
        connection.execute(statement.encode())


def make_numbers(flows: Flows, count: int) -> list[tuple[int, int, int]]:
    """A table of three parts or more."""
    change(flows, f"CREATE TABLE numbers ({COLUMNS}, filler text)")
    return add_numbers(flows, 0, count)


def add_numbers(flows: Flows, first: int, stop: int) -> list[tuple[int, int, int]]:
    made = f"SELECT i, i % 7, i * i % 1009, repeat('x', 900) FROM generate_series({first}, {stop - 1}) AS i"
    change(flows, f"INSERT INTO numbers {made}")
    return [(i, i % 7, i * i % 1009) for i in range(first, stop)]


@RUNTIMES
@pytest.mark.parametrize("place", [UNDECIDED, DECIDED])
@pytest.mark.parametrize("delivery", ["two_phase", "staged"])
def test_a_table_comes_into_a_table_as_it_was_at_one_moment_where_the_driver_is_killed(
    flows: Flows, runs: Runs, runtime: str, place: str, delivery: str
) -> None:
    flows.sent = make_numbers(flows, 3_000)
    job = replace(flows.job(runtime=runtime, workers=2, delivery=delivery), topic="postgres:numbers")
    runs.end_at(job, place)
    change(flows, "DELETE FROM numbers WHERE id < 100")
    more = add_numbers(flows, 3_000, 4_000)
    runs.finish(job)
    if place == UNDECIDED:
        flows.sent = [*flows.sent[100:], *more]
    flows.assert_exact(job)
    add_numbers(flows, 4_000, 5_000)
    runs.finish(job)  # it has ended
    flows.assert_exact(job)


def make_owners(flows: Flows) -> None:
    change(flows, "CREATE TABLE owners AS SELECT i AS account, i * 10 AS owner FROM generate_series(0::bigint, 6) AS i")


def joined(flows: Flows) -> set[int]:
    """Every order once, with its account's owner; by how much owners are more than they were."""
    found = flows.sql("SELECT id, account, n, owner FROM rows ORDER BY id")
    assert [row[:3] for row in found] == flows.sent
    return {owner - account * 10 for _, account, _, owner in found}


@RUNTIMES
def test_a_table_and_a_topic_are_joined_by_state_where_the_driver_is_killed(
    flows: Flows, runs: Runs, runtime: str
) -> None:
    flows.put(700)
    make_owners(flows)
    job = flows.job(kind="joined", other="postgres:owners", runtime=runtime, workers=2)
    runs.end_at(job, UNDECIDED)
    change(flows, "UPDATE owners SET owner = owner + 1")
    runs.finish(job)
    assert joined(flows) == {1}
    flows.put(100)
    if runtime == "spark":  # the engine's topic ends where it ended at its first start
        runs.finish(job)
        assert joined(flows) == {1}


def test_the_engine_keeps_what_it_has_read_with_the_epoch_that_is_decided(flows: Flows, runs: Runs) -> None:
    flows.put(700)
    make_owners(flows)
    job = flows.job(kind="joined", other="postgres:owners", workers=2)
    runs.end_at(job, DECIDED)
    change(flows, "UPDATE owners SET owner = owner + 1")
    runs.finish(job)
    assert joined(flows) == {0}


def test_state_that_spark_has_not_kept_with_its_epoch_is_not_made_of_another_moment(flows: Flows, runs: Runs) -> None:
    flows.put(700)
    make_owners(flows)
    job = flows.job(kind="joined", other="postgres:owners", runtime="spark")
    runs.end_at(job, DECIDED)
    with raises(DataLoss, "state-not-replayable", "table owners"):
        runs.finish(job)
    assert len(flows.sql("SELECT 1 FROM rows")) == 300


@RUNTIMES
def test_a_table_that_is_added_to_a_flow_later_is_read_whole(flows: Flows, runs: Runs, runtime: str) -> None:
    flows.put(500)
    job = flows.job(kind="rows", runtime=runtime)
    runs.finish(job)
    change(flows, f"CREATE TABLE numbers ({COLUMNS}, filler text)")
    flows.sent += add_numbers(flows, 500, 1_500)
    runs.finish(replace(job, kind="union", other="postgres:numbers"))
    flows.assert_exact(job)


@pytest.fixture
def hbase_numbers(hbase_server: Any) -> tuple[str, Callable[[int, int], None]]:
    """A table of three regions, and what puts rows there."""
    settings, name = HBaseSettings(hbase_server.servers), f"numbers_{uuid.uuid4().hex[:12]}"
    columns = {each: f"f:{each} integer" for each in ("account", "n")}
    mapping = TableMapping.of(name, "id integer", columns)

    create(settings, name, [ColumnFamily(b"f")], SPLITS)
    there = HBaseTable(settings, name)

    def fill(first: int, stop: int) -> None:
        rows = pa.RecordBatch.from_pylist([{"id": i, "account": i % 7, "n": i * i % 1009} for i in range(first, stop)])
        bound = mapping.bound(rows.schema)
        there.put(bound.keys(rows), bound.cells(rows), 1000)

    return name, fill


@RUNTIMES
@pytest.mark.parametrize("kind", ["rows", "totals"])
def test_a_table_of_hbase_comes_once_where_the_driver_is_killed(
    flows: Flows, runs: Runs, hbase_server: Any, hbase_numbers: Any, runtime: str, kind: str
) -> None:
    name, fill = hbase_numbers
    fill(0, 500)
    settings = {"kind": kind, "runtime": runtime, "workers": 2, "hbase": hbase_server.servers}
    job = replace(flows.job(**settings), topic=f"hbase:{name}")
    runs.end_at(job, UNDECIDED)
    fill(500, 700)
    runs.finish(job)
    flows.sent = [(i, i % 7, i * i % 1009) for i in range(700)]
    flows.assert_exact(job)
    fill(700, 800)
    runs.finish(job)
    flows.assert_exact(job)


@RUNTIMES
@pytest.mark.parametrize("sink", ["hbase", "keyed"])
def test_a_table_is_refused_beside_a_sink_that_writes_through_before_anything_is_taken_over(
    flows: Flows, runs: Runs, hbase_server: Any, runtime: str, sink: str
) -> None:
    make_owners(flows)
    flow = Flow("refused")
    owners = flow.source(PostgresSource(flows.url, "owners"), uid="owners")
    if sink == "hbase":
        owners.sink(HBaseSink(hbase_server.servers, "refused", row_key="account", family="f"))
    else:
        at = {"bootstrap_servers": flows.servers, "delivery": "keyed", "id": "account"}
        owners.sink(KafkaSink(flows.topic, **at))
    other = PostgresSink(flows.url, table="copies")
    owners.sink(other)
    with raises(ConfigError, "source-not-replayable", "table owners"):
        if runtime == "engine":
            flow.run(
                checkpoint=str(flows.directory / "checkpoint"),
                restart=Restart(strategy="fixed_delay", delay_s=0.1, attempts=3),
            )
        else:
            runs.on_spark(flow, runs.rig.checkpoint())
    assert flows.sql("SELECT to_regclass('copies')") == [(None,)]
    assert flows.sql("SELECT count(*) FROM onefold_sinks.onefold_pipelines") == [(0,)]


@RUNTIMES
def test_a_flow_whose_sources_are_all_tables_ends_by_itself(
    flows: Flows, runs: Runs, hbase_server: Any, hbase_numbers: Any, runtime: str
) -> None:
    name, fill = hbase_numbers
    fill(7, 10)
    make_owners(flows)
    columns = {"owner": "f:n integer"}
    flow = Flow("tables")
    known = flow.source(PostgresSource(flows.url, "owners", where="account > 2"), uid="known")
    others = flow.source(HBaseSource(hbase_server.servers, name, row_key="account integer", columns=columns), uid="new")
    known.union(others).sink(PostgresSink(flows.url, table="copies"))
    if runtime == "engine":
        flow.run(checkpoint=str(flows.directory / "checkpoint"))
    else:
        runs.on_spark(flow, runs.rig.checkpoint())
    kept = [(i, i * 10) for i in range(3, 7)] + [(i, i * i % 1009) for i in range(7, 10)]
    assert flows.sql("SELECT account, owner FROM copies ORDER BY account") == kept
