"""Errors that crossed Spark as text."""

from __future__ import annotations

import pytest

from onefold.core import BadRecord, DataLoss, OnefoldError, Retriable, SchemaMismatch, Terminal
from onefold.spark.failures import from_spark

WORKER = """[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted due to stage failure: Task 0 failed
Traceback (most recent call last):
  File "/x/onefold/sources/kafka/reading.py", line 41, in read
    raise BadRecord(
{raised}

	at org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:1)
Driver stacktrace:
"""


def crossed(raised: str) -> OnefoldError:
    return from_spark(RuntimeError(WORKER.replace("{raised}", raised)))


def test_an_error_of_a_worker_keeps_its_class_and_message() -> None:
    error = crossed("onefold.core.errors.BadRecord: orders/0 offset 5: no number: 'x'. Correct the schema")
    assert type(error) is BadRecord
    assert str(error) == "orders/0 offset 5: no number: 'x'. Correct the schema"


def test_a_message_of_several_lines_stays_whole() -> None:
    error = crossed("onefold.core.errors.SchemaMismatch: the rows do not fit:\n  id: text\n  n: missing")
    assert type(error) is SchemaMismatch
    assert str(error) == "the rows do not fit:\n  id: text\n  n: missing"


def test_what_spark_appends_to_an_error_of_a_format_is_no_part_of_its_message() -> None:
    text = "Traceback (most recent call last):\nonefold.core.errors.ConfigError: no such option\n SQLSTATE: 38000"
    assert str(from_spark(RuntimeError(text))) == "no such option"


def test_the_last_error_of_a_chain_counts() -> None:
    text = "onefold.core.errors.Retriable: no answer\n\nThe above exception was the direct cause\n\n"
    error = crossed(text + "onefold.core.errors.DataLoss: gone")
    assert type(error) is DataLoss
    assert str(error) == "gone"


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        ("ModuleNotFoundError: No module named 'mine'", "workers cannot import 'mine'"),
        ("ImportError: cannot import name 'mine'", "ImportError: cannot import name 'mine'"),
        ("my.package.StrangeError: what", "my.package.StrangeError: what"),
    ],
)
def test_an_exception_of_the_jobs_own_code_is_final_and_says_its_reason(raised: str, reason: str) -> None:
    error = crossed(raised)
    assert type(error) is Terminal
    assert reason in str(error)


def test_a_job_that_failed_without_an_exception_of_python_may_be_tried_again() -> None:
    error = from_spark(RuntimeError("Job aborted due to stage failure: ExecutorLostFailure (executor 1 exited)"))
    assert type(error) is Retriable
    assert "ExecutorLostFailure" in str(error)
