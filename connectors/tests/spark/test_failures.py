"""Errors that crossed Spark as text."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from onefold.core import BadRecord, DataLoss, OnefoldError, Retriable, SchemaMismatch, Terminal
from onefold.spark.runtime import sealing
from onefold.spark.runtime.failures import from_spark
from onefold.spark.runtime.sealing import marks

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


def printed(error: OnefoldError) -> str:
    """As a worker prints it, that has the driver's key."""
    before, behind = marks(type(error))
    return f"onefold.core.errors.{type(error).__name__}: {error}\n{before}{error.code} {error.message}{behind}"


def test_an_error_of_a_worker_keeps_its_class_code_and_message() -> None:
    error = crossed(printed(BadRecord("record-unreadable", "orders/0 offset 5: no number: 'x'. Correct the schema")))
    assert type(error) is BadRecord
    assert str(error) == "orders/0 offset 5: no number: 'x'. Correct the schema [record-unreadable]"
    assert error.code == "record-unreadable"


def test_a_message_of_several_lines_stays_whole() -> None:
    error = crossed(printed(SchemaMismatch("table-mismatch", "the rows do not fit:\n  id: text\n\n  n: missing")))
    assert type(error) is SchemaMismatch
    assert error.message == "the rows do not fit:\n  id: text\n\n  n: missing"


def test_the_last_error_of_a_chain_counts() -> None:
    first, last = printed(Retriable("database-unavailable", "no answer")), printed(DataLoss("records-deleted", "gone"))
    error = crossed(f"{first}\n\nThe above exception was the direct cause\n\n{last}")
    assert type(error) is DataLoss
    assert (error.code, error.message) == ("records-deleted", "gone")


def test_what_data_says_is_no_error_of_ours_whatever_it_looks_like() -> None:
    zeros = "0" * 32
    for fake in (
        "onefold.core.errors.Fenced: stop",
        f"[[onefold Fenced {zeros}]]stop[[/{zeros}]]",
        f"[[/{zeros}]] [[onefold Fenced {zeros}]]",
        "Traceback (most recent call last):\nonefold.core.errors.Fenced: stop",
    ):
        error = crossed(f"ValueError: x\n\n{fake}\n\n{fake}")
        assert type(error) is Terminal and len(str(error).splitlines()) == 1
        error = crossed(printed(BadRecord("record-unreadable", f"orders/0 offset 5: {fake}, {fake}")))
        assert type(error) is BadRecord and error.message == f"orders/0 offset 5: {fake}, {fake}"


def test_every_process_with_the_key_prints_the_seal_and_others_have_other_keys() -> None:
    code = "from onefold.spark.runtime.sealing import marks; from onefold.core import DataLoss, SchemaMismatch\n"
    raising = f"{code}raise SchemaMismatch('table-mismatch', 'gone')"
    environment = {**os.environ, "ONEFOLD_ERRORS_KEY": sealing._key}
    knows = subprocess.run([sys.executable, "-c", raising], env=environment, capture_output=True, text=True, timeout=60)
    error = from_spark(RuntimeError(knows.stderr))
    assert type(error) is SchemaMismatch and str(error) == "gone [table-mismatch]"
    does_not = subprocess.run([sys.executable, "-c", raising], capture_output=True, text=True, timeout=60)
    assert type(from_spark(RuntimeError(does_not.stderr))) is Terminal
    assert sealing._key not in knows.stderr
    other = subprocess.run([sys.executable, "-c", f"{code}print(*marks(DataLoss))"], capture_output=True, timeout=60)
    assert other.stdout.decode().split() != " ".join(marks(DataLoss)).split()


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


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        ("ModuleNotFoundError: No module named 'onefold'", "No module named 'onefold'"),
        ("ModuleNotFoundError: No module named 'psycopg'", "No module named 'psycopg'"),
        ("pyspark.errors.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] 3.9 is not 3.11", "3.9 is not 3.11"),
    ],
)
def test_workers_with_another_python_say_how_to_give_them_the_right_one(raised: str, reason: str) -> None:
    error = crossed(raised)
    assert (type(error), error.code) == (Terminal, "module-not-importable")
    assert reason in error.message and "set PYSPARK_PYTHON" in error.message
