"""Aggregating queries, killed with SIGKILL at the protocol's places: the tables end as Python computes them."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest
from harness.aggregating_job import (
    QUERIES,
    ROW_KEY,
    AggregatingJob,
    Totals,
    expected_changes,
    expected_sessions,
    expected_windows,
    purchases,
)
from harness.support import Rig, wait_until

from onefold.core import EpochRecord, EpochState
from onefold.sources import HBaseSource
from onefold.spark import read_hbase
from onefold.trials.workload.session_processes import SessionProcess

pytestmark = pytest.mark.servers

BATCH = 120


class Killed:
    """One process after another, each killed when all three queries stand at a place."""

    def __init__(self, rig: Rig, hbase: str | None) -> None:
        self.rig, self.number = rig, 0
        self.job = AggregatingJob(rig.servers, rig.topic, rig.url, str(rig.directory), BATCH, hbase)
        self.path = rig.directory / "job.json"
        self.path.write_text(json.dumps(asdict(self.job)))

    def at(self, place: str, passes: int = 1) -> None:
        """Where each query comes to that place for the `passes`-th time."""
        self.number += 1
        markers = self.rig.directory / f"held-{self.number}"
        markers.mkdir()
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        environment |= {"ONEFOLD_FAILPOINT": f"{place}#*", "ONEFOLD_FAILPOINT_DIR": str(markers)}
        log = self.rig.directory / f"job-{self.number}.log"
        process = SessionProcess(("harness.aggregating_job", str(self.path)), log, environment)

        def are_held() -> bool:
            assert process.exit_status is None, log.read_text()[-5000:]
            return len([*markers.iterdir()]) == len(QUERIES)

        try:
            for again in reversed(range(passes)):
                wait_until(are_held, f"holding all queries at {place}")
                for marker in markers.iterdir() if again else ():
                    marker.unlink()
        except AssertionError as error:
            held = sorted(marker.name for marker in markers.iterdir())
            raise AssertionError(f"held: {held}; {log.read_text()[-5000:]}") from error
        finally:
            process.kill()
        assert process.exit_status == -9

    def last_epochs(self) -> list[EpochRecord]:
        pipelines = [self.job.pipeline(query) for query in QUERIES]
        self.rig.pipelines += pipelines
        return [pipeline.history()[-1] for pipeline in pipelines]

    def finish(self) -> None:
        for query in QUERIES:
            self.job.run(self.rig.spark, query)

    def totals(self, table: str) -> Totals:
        if table == "changes" and self.job.hbase:
            changes = HBaseSource(self.job.hbase, f"changes_{self.job.topic}", row_key=ROW_KEY, family="f")
            rows = read_hbase(self.rig.spark, changes, "start long, account long, n long, total long")
            return sorted(tuple(row) for row in rows.select("start", "account", "n", "total").collect())
        columns = "start, account, n, total"
        return [tuple(map(int, row)) for row in self.rig.sql(f"SELECT {columns} FROM {table} ORDER BY {columns}")]

    def assert_exact(self, records: int) -> None:
        bought = purchases(0, records)
        assert self.totals("changes") == expected_changes(bought)
        assert self.totals("windows") == expected_windows(bought)
        assert self.totals("sessions") == expected_sessions(bought)
        assert {record.state for record in self.last_epochs()} == {EpochState.COMPLETE}
        self.rig.assert_nothing_in_doubt()


def is_without_records(record: EpochRecord) -> bool:
    return record.range.start.of_records() == record.range.end.of_records()


@pytest.mark.soak
@pytest.mark.xdist_group("hbase")
@pytest.mark.parametrize("into", ["postgres", "hbase"])
def test_windows_and_sessions_are_exact_after_kills_also_of_a_batch_that_only_moves_the_watermark(
    rig: Rig, into: str, request: pytest.FixtureRequest
) -> None:
    """The changes of the groups go into Postgres or HBase, windows and sessions into Postgres."""
    killed = Killed(rig, request.getfixturevalue("hbase_server").servers if into == "hbase" else None)
    rig.put_values([each.value() for each in purchases(0, 3 * BATCH)])
    killed.at("before:Decide")
    killed.at("after:Decide", passes=2)
    assert {record.state for record in killed.last_epochs()} == {EpochState.DECIDED}
    killed.at("before:Complete")  # in recovery
    killed.at("before:RunWriters")

    killed.at("before:Decide", passes=2)
    killed.at("after:Decide")
    decided = killed.last_epochs()
    assert all(is_without_records(record) and record.state is EpochState.DECIDED for record in decided)

    killed.finish()
    assert [record.epoch for record in killed.last_epochs()] == [record.epoch for record in decided], "a replay"
    killed.assert_exact(3 * BATCH)
    rig.put_values([each.value() for each in purchases(3 * BATCH, 5 * BATCH)])
    killed.finish()
    killed.assert_exact(5 * BATCH)
