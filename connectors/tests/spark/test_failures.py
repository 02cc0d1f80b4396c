"""Errors that crossed Spark as text."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import pytest
from harness.errors import raises
from pyspark.errors import StreamingQueryException

from onefold.core import (
    BadRecord,
    CheckpointMismatch,
    DataLoss,
    OnefoldError,
    OutOfResources,
    Retriable,
    SchemaMismatch,
    Terminal,
)
from onefold.core.protocol.patience import Patience
from onefold.sinks import PostgresSink
from onefold.spark.epoch_writer import EpochWriter
from onefold.spark.errors import failures
from onefold.spark.errors.failures import WorkerDied, check_start, from_spark, marks
from onefold.spark.session import temporary_folder

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


def test_the_jobs_own_error_names_the_innermost_line_of_the_users_own_code() -> None:
    text = """[STREAM_FAILED] Query terminated: Job aborted
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/pyspark/python/lib/pyspark.zip/pyspark/worker.py", line 3271, in main
    process()
  File "/srv/onefold/job.py", line 12, in clean
    yield from map(amount, batch)
  File "/srv/onefold/job.py", line 8, in amount
    return json.loads(value)
  File "/usr/lib/python3.11/json/__init__.py", line 346, in loads
    return _default_decoder.decode(s)
json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)

	at org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:1)
"""
    error = from_spark(RuntimeError(text))
    assert type(error) is Terminal and error.code == "job-code-failed"
    assert error.message == (
        "the job's own code failed at /srv/onefold/job.py:8 in amount: json.decoder.JSONDecodeError: Expecting value:"
        " line 1 column 1 (char 0). This batch is not decided; correct the code and start again"
    )


def test_every_process_with_the_key_prints_the_seal_and_others_have_other_keys() -> None:
    code = "from onefold.spark.errors.failures import marks; from onefold.core import DataLoss, SchemaMismatch\n"
    raising = f"{code}raise SchemaMismatch('table-mismatch', 'gone')"
    environment = {**os.environ, "ONEFOLD_ERRORS_KEY": failures._key}
    knows = subprocess.run([sys.executable, "-c", raising], env=environment, capture_output=True, text=True, timeout=60)
    error = from_spark(RuntimeError(knows.stderr))
    assert type(error) is SchemaMismatch and str(error) == "gone [table-mismatch]"
    does_not = subprocess.run([sys.executable, "-c", raising], capture_output=True, text=True, timeout=60)
    assert type(from_spark(RuntimeError(does_not.stderr))) is Terminal
    assert failures._key not in knows.stderr
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


def test_a_failed_call_of_java_says_what_java_said() -> None:
    text = (
        "An error occurred while calling o379.collectToPython.\n: java.io.IOException: Broken pipe\n\tat a.B.c(B.java)"
    )
    error = from_spark(RuntimeError(text))
    assert (error.code, error.message) == (
        "spark-job-failed",
        "the Spark job failed: java.io.IOException: Broken pipe",
    )


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


STATE = (
    "[STREAM_FAILED] Query [id = 1] terminated with exception: [{name}] Provided value schema does not match\nmore\n"
)


@pytest.mark.parametrize(
    "name",
    [
        "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
        "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
        "STATE_STORE_VALUE_ROW_FORMAT_VALIDATION_FAILURE",
        "STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE",
        "STATE_STORE_INVALID_CONFIG_AFTER_RESTART",
        "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
    ],
)
def test_state_of_another_query_is_final_and_says_the_ways_out(name: str) -> None:
    error = from_spark(RuntimeError(STATE.format(name=name)))
    assert (type(error), error.code) == (CheckpointMismatch, "state-of-another-query")
    assert f"another query: Provided value schema does not match ({name})" in error.message


def test_what_may_pass_with_a_state_store_may_be_tried_again() -> None:
    for name in ("STATE_STORE_UNEXPECTED_EMPTY_FILE_IN_ROCKSDB_ZIP", "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED"):
        assert type(from_spark(RuntimeError(STATE.format(name=name)))) is Retriable


@pytest.mark.parametrize(
    "text",
    [
        "[STREAM_FAILED] Query [id = 1] terminated with exception: java.io.IOException: No space left on device",
        "Job aborted due to stage failure: Task 0 failed: java.io.IOException: Disk quota exceeded",
        "org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device",
        WORKER.replace("{raised}", "OSError: [Errno 28] No space left on device: '/tmp/x'"),
        WORKER.replace("{raised}", "OSError: [Errno 27] File too large"),
    ],
)
def test_a_full_disk_is_told_as_such_and_may_pass(text: str) -> None:
    error = from_spark(RuntimeError(text))
    assert (type(error), error.code) == (OutOfResources, "spark-disk-full")
    assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize("raised", ["MemoryError", "pyarrow.lib.ArrowMemoryError: malloc of size 64 failed"])
def test_a_worker_without_memory_is_told_as_such_and_may_be_tried_again(raised: str) -> None:
    error = crossed(raised)
    assert isinstance(error, WorkerDied) and error.code == "worker-out-of-memory"


def test_a_machine_on_which_no_folder_takes_a_temporary_file_has_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)  # as in a new process
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))  # no file takes a byte
    try:
        with raises(OutOfResources, "spark-disk-full") as caught, temporary_folder("test-"):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
    assert caught.value.code == "spark-disk-full"


def test_what_a_record_says_of_disks_and_memory_is_no_lack_of_them() -> None:
    for raised in (
        "ValueError: No space left on device",
        "KeyError: 'MemoryError'",
        "my.OwnError: OSError: [Errno 28] No space left on device",
    ):
        assert type(crossed(raised)) is Terminal


LATE = (  # as Spark says it
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Python worker failed to connect back.",
    "An error occurred while calling o12.load.\n: org.apache.spark.SparkException: Python worker failed to connect"
    " back.\n\tat org.apache.spark.api.python.PythonWorkerFactory.createSimpleWorker(PythonWorkerFactory.scala:1)",
    "java.net.SocketTimeoutException: Timed out while waiting for the Python worker to connect back after 60000 ms",
    "Job aborted due to stage failure: Lost task 0.0: java.net.SocketTimeoutException: Accept timed out",
    "[STREAMING_PYTHON_RUNNER_INITIALIZATION_TIMEOUT_FAILURE] Streaming Runner initialization failed. Socket connection"
    " timeout. Cause: null",
)


@pytest.mark.parametrize("text", LATE)
def test_a_worker_that_could_not_connect_back_is_waited_for(text: str) -> None:
    error = from_spark(RuntimeError(text))
    assert (type(error), error.code) == (OutOfResources, "worker-not-started")
    assert len(str(error).splitlines()) == 1
    said = f"Traceback (most recent call last):\nValueError: a record says {text.splitlines()[0]}"
    assert type(from_spark(RuntimeError(said))) is Terminal


class Query:
    """As much of a query as its start is: what its status says from look to look, and the error that ends it."""

    def __init__(self, *says: str, error: str | None = None) -> None:
        self._says, self._error = list(says), error

    @property
    def isActive(self) -> bool:  # noqa: N802
        return bool(self._says)

    @property
    def status(self) -> dict[str, str]:
        return {"message": self._says.pop(0) if len(self._says) > 1 or self._error else self._says[0]}

    def awaitTermination(self) -> None:  # noqa: N802
        if self._error:
            raise StreamingQueryException(self._error)


PLANS = ("Initializing sources", "Getting offsets from onefold_kafka")


def check(query: Any, has_batch: bool = False) -> None:
    began_s = time.monotonic()
    check_start(query, lambda: has_batch, within_s=20)
    assert time.monotonic() - began_s < 10


def test_a_start_is_over_with_the_first_batch_or_when_there_is_none_yet_or_with_the_query() -> None:
    check(Query(*PLANS, "Waiting for data to arrive"))
    check(Query(*PLANS), has_batch=True)
    check(Query())


def test_a_start_that_lasts_is_not_waited_for_any_longer() -> None:
    check_start(Query(*PLANS), lambda: False, within_s=0.1)  # type: ignore[arg-type]


def test_a_start_is_repeated_where_a_worker_was_late_and_any_other_end_is_left_to_who_waits_for_the_query() -> None:
    queries: list[Any] = [
        Query(*PLANS, error=LATE[0]),
        Query("Initializing sources", error=LATE[0]),
        Query(*PLANS, error="[STREAM_FAILED] terminated with exception: the topic is gone"),
    ]
    patience = Patience(20, pause_max_s=0.01)
    patience.retry(lambda: check(queries.pop(0)), "starting the query", OutOfResources)
    assert queries == []
    with raises(OutOfResources, "worker-not-started"):
        Patience(0).retry(lambda: check(Query(*PLANS, error=LATE[0])), "starting the query", OutOfResources)
    check(Query(error=LATE[0]), has_batch=True)


class GoneQuery:
    """A query of a JVM at whose port nobody listens any more: py4j's own frame raises."""

    def awaitTermination(self, timeout_s: int | None = None) -> None:  # noqa: N802
        del timeout_s
        exec("raise ConnectionRefusedError('nobody listens there')", {"__name__": "py4j.java_gateway"})

    @property
    def isActive(self) -> None:  # noqa: N802
        self.awaitTermination()


@pytest.mark.parametrize("ask", [EpochWriter.await_termination, lambda w, q: EpochWriter.drain(w, q, within_s=5)])
def test_who_waits_for_a_query_whose_jvm_was_killed_is_told_so(ask: Callable[[EpochWriter, Any], Any]) -> None:
    writer = EpochWriter("p", sinks=[PostgresSink("postgresql://nobody@127.0.0.1:1/none", "t")])
    with pytest.raises(Retriable) as gone:
        ask(writer, GoneQuery())
    assert (gone.value.code, gone.value.exit_code) == ("jvm-gone", 75)
