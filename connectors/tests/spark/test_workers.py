"""Which Python the workers are told to run, and when it is tried, without a Spark."""

from __future__ import annotations

import sys
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from onefold.core import ConfigError, Retriable
from onefold.sinks import SqlSink
from onefold.spark.runtime import workers


class Spark:
    """As much of a session as `prepare_workers` asks. It counts the jobs that try the workers' Python."""

    def __init__(self, master: str, python: str, error: Exception | None = None, **settings: str) -> None:
        self._jsparkSession = None  # as any session has that is not Spark Connect's
        self.sparkContext = SimpleNamespace(master=master, pythonExec=python, environment={})
        self.conf = {"spark.app.id": str(uuid.uuid4()), **settings}
        self.jobs, self._error = 0, error

    def range(self, *_: int) -> Any:
        return self

    def mapInArrow(self, *_: object) -> Any:  # noqa: N802
        return self

    def collect(self) -> None:
        self.jobs += 1
        if self._error is not None:
            raise self._error


def prepared(spark: Any, *parts: object) -> Any:
    workers.prepare_workers(spark, *parts)
    return spark


@pytest.fixture(autouse=True)
def _not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)


def test_on_a_local_master_they_run_this_python_and_nothing_is_tried() -> None:
    spark = prepared(Spark("local[2]", "python3"))
    assert (spark.sparkContext.pythonExec, spark.jobs) == (sys.executable, 0)


def test_a_python_that_the_user_has_chosen_stays_and_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = prepared(Spark("local[2]", "python3", **{"spark.pyspark.python": "/opt/python"}))
    assert (spark.sparkContext.pythonExec, spark.jobs) == ("/opt/python", 1)
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    spark = prepared(Spark("local[2]", "/opt/python"))
    assert (spark.sparkContext.pythonExec, spark.jobs) == ("/opt/python", 1)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert prepared(Spark("local[2]", sys.executable)).jobs == 0


def test_elsewhere_what_a_pipeline_needs_is_tried_once_in_an_application() -> None:
    spark = prepared(Spark("yarn", "python3"))
    assert (prepared(spark).sparkContext.pythonExec, spark.jobs) == ("python3", 1)
    sink = SqlSink("sqlite:////srv/orders.db", "orders")
    assert (prepared(spark, sink).jobs, prepared(spark, sink, sink).jobs) == (2, 2)
    assert prepared(Spark("yarn", "python3"), sink).jobs == 1


def test_what_could_not_be_imported_is_tried_again_and_a_lost_executor_is_no_verdict() -> None:
    lacks = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'onefold'"
    for error, kind in ((RuntimeError(lacks), ConfigError), (RuntimeError("ExecutorLostFailure"), Retriable)):
        spark = Spark("yarn", "python3", error)
        for _ in range(2):
            with pytest.raises(kind):
                prepared(spark)
        assert spark.jobs == 2
