"""One flow, on the engine and on Spark: the tables are equal."""

from __future__ import annotations

from typing import Any

import harness.flow_job
import pytest
from harness.flow_job import FlowJob, FlowProcess
from harness.support import Rig
from pyspark.cloudpickle import register_pickle_by_value

pytestmark = [pytest.mark.servers, pytest.mark.slow]

register_pickle_by_value(harness.flow_job)  # Spark's workers do not find it

WAIT_S = 500

TABLES = {
    "plain": "id, account, n, text, half",
    "parts": "id, text",
    "even": "id, half",
    "each": "id, number",
    "totals": "account, total, records, mean, least, last",
    "visits": "account, records, seen",
}


class Pair:
    def __init__(self, rig: Rig) -> None:
        self.rig = rig

    def put(self, first: int, stop: int) -> None:
        records = [b'{"id":%d,"account":%d,"n":%d}' % (i, i % 4, i * i % 1009) for i in range(first, stop)]
        self.rig.put_values(records)  # each account's in one partition, so that they have an order

    def on_engine(self, name: str = "engine") -> None:
        process = FlowProcess(self._job(name, "engine"), self.rig.directory / name)
        assert process.wait() == 0, process.log.read_text()[-3000:]

    def on_spark(self, name: str = "spark", **more: Any) -> None:
        job = self._job(name, "spark")
        query = job.flow().start(self.rig.spark, checkpoint=job.checkpoint, trigger={"availableNow": True}, **more)
        self.rig.pipelines.append(query.writer)
        assert query.await_termination(WAIT_S)
        query.writer.close()

    def rows(self, name: str) -> dict[str, list[tuple[Any, ...]]]:
        return {table: self.rig.sql(f"SELECT {of} FROM {name}_{table} ORDER BY {of}") for table, of in TABLES.items()}

    def _job(self, name: str, runtime: str) -> FlowJob:
        rig = self.rig
        checkpoint = str(rig.directory / f"{name}-checkpoint")
        return FlowJob(rig.servers, rig.topic, rig.url, checkpoint, kind="all", name=name, runtime=runtime, at_most=300)


def test_functions_aggregates_and_processors_give_the_tables_that_the_engine_gives(rig: Rig) -> None:
    rig.spark.conf.set("spark.sql.shuffle.partitions", "2")
    pair = Pair(rig)
    pair.put(0, 500)
    pair.on_spark()
    pair.on_engine()
    found, expected = pair.rows("spark"), pair.rows("engine")
    assert all(expected.values())
    assert found == expected
    pair.put(500, 700)
    pair.on_spark()  # goes on with its state
    pair.on_engine("anew")  # all records, in other epochs
    found = pair.rows("spark")
    assert found == pair.rows("anew")
    assert found != expected
    rig.assert_nothing_in_doubt()
