"""The pure parts of the torture's judgement: rows compared, processes told apart, and a history that can be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onefold.connectors.torture.comparing import compare_rows
from onefold.connectors.torture.history import History
from onefold.connectors.torture.targets import Role, role_of

GOOD = {1: [(1, "a")], 2: [(2, "b")], 3: [(3, "c")]}


def test_equal_rows_are_equal() -> None:
    found = compare_rows(GOOD, GOOD)
    assert (found.expected, found.actual) == (3, 3)
    assert (found.lost, found.duplicated, found.changed, found.unexpected) == (0, 0, 0, 0)
    assert found.samples == {}


def test_lost_doubled_changed_and_strange_rows_are_told_apart() -> None:
    found = compare_rows(GOOD, {2: [(2, "b"), (2, "b")], 3: [(3, "x")], 9: [(9, "z")]})
    assert (found.lost, found.duplicated, found.changed, found.unexpected) == (1, 1, 1, 1)
    assert found.samples == {
        "lost": ["id=1"],
        "duplicated": ["id=2"],
        "changed": ["id=3"],
        "unexpected": ["id=9"],
    }


def test_a_key_that_the_source_has_twice_is_expected_twice() -> None:
    twice = {1: [(1, "a"), (1, "b")]}
    assert compare_rows(twice, {1: [(1, "b"), (1, "a")]}).samples == {}
    assert compare_rows(twice, {1: [(1, "a")]}).lost == 1
    assert compare_rows(twice, {1: [(1, "a"), (1, "a")]}).changed == 2


DAEMON = ("python", "-m", "pyspark.daemon", "pyspark.worker")


@pytest.mark.parametrize(
    ("command", "parent", "role"),
    [
        (("java", "-cp", "x", "org.apache.spark.deploy.SparkSubmit"), ("python",), Role.DRIVER_JVM),
        (("java", "org.apache.spark.executor.CoarseGrainedExecutorBackend"), ("java",), Role.EXECUTOR),
        (DAEMON, DAEMON, Role.WORKER),
        (DAEMON, ("java",), None),
        (("python", "-m", "pyspark.sql.streaming.python_streaming_source_runner"), ("java",), Role.WORKER),
        (("java", "org.apache.spark.deploy.worker.Worker"), (), None),
        (("bash",), (), None),
    ],
)
def test_a_process_is_what_its_command_line_says(
    command: tuple[str, ...], parent: tuple[str, ...], role: Role | None
) -> None:
    assert role_of(command, parent) is role


def test_each_line_of_the_history_is_an_object_with_time_and_event(tmp_path: Path) -> None:
    history = History(tmp_path / "history.jsonl")
    history.write("fault", number=1, kind="kill driver", pid=None)
    history.write("end", exact=True)  # on disk already, though nobody has closed it
    lines = [json.loads(line) for line in history.path.read_text().splitlines()]
    history.close()
    assert [line["event"] for line in lines] == ["fault", "end"]
    assert all({"time", "seconds"} <= line.keys() for line in lines)
    assert lines[0]["pid"] is None
