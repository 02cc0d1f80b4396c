"""Whole flows with event time, in processes of their own: windows that a processor makes with timers of event time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from harness.kafka.topics import in_order

BEGIN = 1_767_225_600  # 2026-01-01

JOB = """
import os, signal, sys
from datetime import UTC, datetime
from onefold.flow import Flow, StatefulProcessor, monotonic
from onefold.sinks import PostgresSink
from onefold.sources import FileSource, KafkaSource

folder, url, state, workers, ends, epochs = sys.argv[1:]

class TenSeconds(StatefulProcessor):
    def init(self, handle):
        self.handle = handle
        self.sums = handle.getMapState("sums", "window_end long", "n long")

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            end = (int(row.at.timestamp()) // 10 + 1) * 10
            if end * 1000 <= timerValues.getCurrentWatermarkInMs():
                yield key[0], end, -1  # late
                continue
            self.handle.registerTimer(end * 1000)
            self.sums.updateValue((end,), ((self.sums.getValue((end,)) or (0,))[0] + 1,))

    def handleExpiredTimer(self, key, timerValues, expired):
        end = expired.getExpiryTimeInMs() // 1000
        yield key[0], end, self.sums.getValue((end,))[0]
        self.sums.removeKey((end,))

left = int(epochs)
def ended(outcome):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGTERM)

flow = Flow("windows")
def read(name):
    schema = "k string, at timestamp"
    files = FileSource(f"{folder}/{name}", name=name, format="json", schema=schema, max_files_per_trigger=1)
    return flow.source(
        files.bounded() if ends == "ends" else files, uid=name, watermarks=monotonic("at", idle="2 seconds")
    )

if "TOPIC" in os.environ:
    servers, schema = os.environ["SERVERS"], "k string, at timestamp"
    topic = KafkaSource(os.environ["TOPIC"], bootstrap_servers=servers, format="json", schema=schema)
    rows = flow.source(topic, uid="topic", watermarks=monotonic("at", idle=None))
else:
    both = read("left"), read("right")
    if "DRIFT" in os.environ:
        flow.align(os.environ["DRIFT"], *both)
    rows = both[0].union(both[1])
fired = rows.key_by("k").process(
    TenSeconds(), "k string, window_end long, n long", uid="ten", timers="event"
)
fired.sink(PostgresSink(url, "fired"))
done = flow.run(checkpoint=f"{folder}/cp", state=state, workers=int(workers), on_outcome=ended)
print("EPOCHS", done.epochs)
"""


def as_json(row: str) -> str:
    key, _, at = row.partition("@")
    return json.dumps({"k": key, "at": f"2026-01-01T00:00:{int(at):02}Z"})


class Windows:
    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self._url, self._files = folder, url, 0
        self.environment = {**os.environ, "TMPDIR": str(folder)}
        for name in ("left", "right"):
            (folder / name).mkdir()

    def put(self, name: str, rows: str) -> None:
        """A file of rows such as `a@3`."""
        self._files += 1
        (self.folder / name / f"{self._files}.json").write_text("\n".join(map(as_json, rows.split())))

    def run(self, ends: bool, epochs: int = 0, state: str = "memory", workers: int = 1) -> int:
        """Until the sources end, or after so many epochs. Returns how many there were."""
        given = [str(self.folder), self._url, state, str(workers), "ends" if ends else "", str(epochs)]
        done = subprocess.run(
            [sys.executable, "-c", JOB, *given],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return int(done.stdout.split("EPOCHS")[1])

    def rows(self) -> list[tuple[str, int, int]]:
        """The firings: key, end of the window in seconds since the day's begin, and how many rows it has."""
        with psycopg.connect(self._url) as connection:
            found = connection.execute("SELECT k, window_end, n FROM fired ORDER BY 2, 1").fetchall()
        return [(key, end - BEGIN, n) for key, end, n in found]


@pytest.fixture
def windows(tmp_path: Path, postgres_url: str) -> Windows:
    return Windows(tmp_path, postgres_url)


@pytest.mark.parametrize(("state", "workers"), [("memory", 1), ("memory", 3), ("rocksdb", 2)])
def test_the_lowest_of_two_sources_fires_windows_and_their_end_all_that_are_left(
    windows: Windows, state: str, workers: int
) -> None:
    windows.put("left", "a@1 b@9 a@12")
    windows.put("right", "a@8")
    assert windows.run(ends=False, epochs=1, state=state, workers=workers) == 1
    assert windows.rows() == []
    windows.put("right", "a@25 b@9")
    windows.put("left", "a@31")
    windows.run(ends=True, state=state, workers=workers)
    assert windows.rows() == [("a", 10, 2), ("b", 10, 2), ("a", 20, 1), ("a", 30, 1), ("a", 40, 1)]
    assert windows.run(ends=True, state=state, workers=workers) == 0, "its end is known"


@pytest.mark.parametrize(("drift", "epochs"), [(None, 4), ("10 seconds", 5)])
def test_a_source_that_is_far_ahead_waits_for_the_other(windows: Windows, drift: str | None, epochs: int) -> None:
    """Of each source an epoch has one file. Once left is at 55 its third one waits until right is at 50."""
    windows.environment |= {} if drift is None else {"DRIFT": drift}
    for row in ("a@1", "a@55", "a@56"):
        windows.put("left", row)
    for row in ("a@1", "a@2", "a@3", "a@50"):
        windows.put("right", row)
    assert windows.run(ends=True) == epochs
    assert windows.rows() == [("a", 10, 4), ("a", 60, 3)]


def test_silence_is_due_after_a_start_that_has_nothing_to_read(windows: Windows) -> None:
    windows.put("left", "a@25")
    windows.put("right", "a@5")
    assert windows.run(ends=False, epochs=1) == 1
    assert windows.rows() == []
    assert windows.run(ends=False, epochs=1) == 1
    assert windows.rows() == [("a", 10, 1)]


def test_windows_that_are_left_fire_at_a_start_that_finds_its_sources_at_their_end(windows: Windows) -> None:
    windows.put("left", "a@5")
    assert windows.run(ends=False, epochs=1) == 1
    assert windows.run(ends=True) == 1
    assert windows.rows() == [("a", 10, 1)]
    assert windows.run(ends=True) == 0


@pytest.mark.parametrize(
    "workers", [[1, 1, 1], [4, 2, 3]], ids=["one worker", "workers without a partition, and others"]
)
def test_cases_5_12_and_13_the_lowest_partition_of_a_topic_counts_whoever_reads_it(
    windows: Windows, workers: list[int], kafka_server: Any, kafka_topic: Callable[..., str]
) -> None:
    servers, topic = kafka_server.bootstrap_servers, kafka_topic(partitions=2)
    windows.environment |= {"SERVERS": servers, "TOPIC": topic}
    producer = in_order(servers)

    def put(*rows: str) -> None:
        for row in rows:
            partition, _, record = row.partition(":")
            producer.produce(topic, as_json(record).encode(), partition=int(partition))
        assert producer.flush(30) == 0

    put("0:a@25")
    windows.run(ends=False, epochs=1, workers=workers[0])
    put("1:a@3")
    windows.run(ends=False, epochs=1, workers=workers[1])
    assert windows.rows() == [], "the second partition was waited for, and is at 3"
    put("1:a@12")
    windows.run(ends=False, epochs=1, workers=workers[2])
    assert windows.rows() == [("a", 10, 1)]
