"""Makes onefold errors of the texts in which Spark reports what failed in its workers.

A worker's error comes back as a traceback, which may quote records, SQL and other code's messages. So a worker prints
each onefold error with a seal: its class, code and message between two marks that are made of a key. The driver makes
the key, and passes it to Spark's processes in their environment, where records and queries cannot read it: no record
can forge an error. Each class has its own marks: marks that were read in a log can repeat that class, and no other.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from onefold.core import CheckpointMismatch, OnefoldError, OutOfResources, Retriable, Terminal, errors
from onefold.core.extras import extra_of
from onefold.core.values.plain import place, plain
from onefold.core.values.remedies import RESET
from onefold.core.waiting import Wait

_VARIABLE = "ONEFOLD_ERRORS_KEY"
_KINDS: list[type[OnefoldError]] = [kind for kind in vars(errors).values() if isinstance(kind, type)]

_key = os.environ.get(_VARIABLE) or secrets.token_hex(32)


def share_key(spark: SparkSession) -> None:
    """Give the key to the processes that Spark starts from now on."""
    with suppress(PySparkException):  # Spark Connect has no context here: errors come back without their classes
        spark.sparkContext.environment[_VARIABLE] = _key


def marks(kind: type[OnefoldError]) -> tuple[str, str]:
    """The marks before and after an error of that class: its code, a space, and its message."""
    mark = hmac.new(_key.encode(), kind.__name__.encode(), hashlib.sha256).hexdigest()[:32]
    return f"[[onefold {kind.__name__} {mark}]]", f"[[/{mark}]]"


def opened(text: str) -> OnefoldError | None:
    """The last error in a text that a process with the key has sealed."""
    at, last = max(((text.rfind(marks(kind)[0]), kind) for kind in _KINDS), key=lambda found: found[0])
    if at < 0:
        return None
    before, behind = marks(last)
    code, _, message = text[at + len(before) :].split(behind, 1)[0].partition(" ")
    return last(code, message)


def seal(error: OnefoldError) -> list[str]:
    """The lines that its traceback ends with."""
    before, behind = marks(next(kind for kind in type(error).__mro__ if kind in _KINDS))
    return [f"{before}{error.code} {error.message}{behind}"]


if _VARIABLE in os.environ:  # one of those processes: notes are what a traceback prints below an error's message
    setattr(OnefoldError, "__notes__", property(seal))  # noqa: B010 - no list, as type checkers know it

_RAISED = re.compile(r"^\s*((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)\b.*|onefold(?:\.\w+)+: .*)$", re.MULTILINE)

# A line of a traceback of Python's.
_FRAME = re.compile(r'^ *File "([^"\n]+)", line (\d+), in (.+)$', re.MULTILINE)
_NOT_THERE = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_OTHER_PYTHON = ("[PYTHON_VERSION_MISMATCH]", "[PACKAGE_NOT_INSTALLED]")
_OURS = ("onefold", "pyarrow")  # what every worker needs

_NO_SPACE = r"(?:No space left on device|Disk quota exceeded|File too large)"
_DISK_FULL = re.compile(rf"(?:Exception|FSError|Errno)\b[^\n]*{_NO_SPACE}")
_DISK_FULL_OF_PYTHON = re.compile(rf"OSError: \[Errno \d+\] {_NO_SPACE}")
_MEMORY_FULL_OF_PYTHON = re.compile(r"(?:numpy\.\S*\.|pyarrow\.lib\.)?_?(?:Arrow)?(?:Array)?MemoryError\b")
_JVM_OUT_OF_MEMORY = 3  # how -XX:+ExitOnOutOfMemoryError ends it
_JVM_TERMINATED = 128 + signal.SIGTERM  # a JVM takes SIGTERM itself
_ENDED_WITHIN_S = 5.0

_PY4J_CALL = re.compile(r"^An error occurred while calling \S+\.\n: ")
_DIED = "Python worker exited unexpectedly"
# Spark finds state of another query in its checkpoint: other columns, types, operators or settings of the state itself.
_OTHER_STATE = re.compile(
    r"\[((?:STATE_STORE_\w*(?:SCHEMA|FORMAT|TYPE_CHANGE|CONFIG_AFTER_RESTART)|STREAMING_STATEFUL_OPERATOR_)\w*)\] *(.*)"
)
# Of PythonWorkerFactory, which waits for ten seconds, of the runners of streaming state, and of SocketAuthServer.
_LATE = re.compile(
    r"Python worker failed to connect back|the Python worker to connect back|PYTHON_RUNNER_INITIALIZATION_TIMEOUT"
    r"|Accept timed out"
)


class WorkerDied(Retriable):
    """A Python worker died without an error: a record crashed its parser, or the machine ended it."""


def from_spark(error: Exception) -> OnefoldError:
    """The onefold error that a worker has sealed in a Spark exception's text (`seal`).

    Another Python exception, or a SQL error over the data (a division by zero), is the job's own: `Terminal`. Any other
    failure (an executor lost, a fetch failed) is `Retriable`: nothing was decided. A worker that Spark did not see come
    up in time is `OutOfResources`: it was waited for, and may be again.
    """
    if is_jvm_gone(error):
        return Retriable("jvm-gone", f"Spark's JVM does not answer any more: {_how_it_ended()}. Start the job again")
    text = str(error)
    if (sealed := opened(text)) is not None:
        return sealed
    raised = _RAISED.findall(text)
    is_python = bool(raised) and "Traceback (most recent call last)" in text
    if not is_python and _LATE.search(text):
        return OutOfResources(
            "worker-not-started",
            f"a Python worker that Spark started did not connect back in time: {plain(_first_line(text))}. The machine"
            " is overloaded: give it less to do at once, or Spark fewer cores (local[2])",
        )
    if _DISK_FULL_OF_PYTHON.match(raised[-1]) if is_python else is_disk_full(text):
        return disk_full(plain(raised[-1] if is_python else _first_line(text)))
    if is_python and _MEMORY_FULL_OF_PYTHON.match(raised[-1]):
        return WorkerDied(
            "worker-out-of-memory",
            f"a Python worker of Spark found no memory: {plain(raised[-1])}. Nothing of this batch is decided: give the"
            " workers more, or less to do at once (fewer cores, smaller batches: max_offsets_per_trigger)",
        )
    if not is_python and (other := _OTHER_STATE.search(text)) is not None:
        return CheckpointMismatch(
            "state-of-another-query",
            f"the checkpoint has the state of another query: {plain(other[2])} ({other[1]}). Nothing of this batch is"
            " decided. Start the query that it was again; or, with the new one and a new checkpoint directory,"
            f" {RESET}",
        )
    if is_python or isinstance(error, AnalysisException) or _is_of_data(error):
        reason = plain(raised[-1] if raised else _first_line(text))
        if lacks := _lacking(reason):
            return Terminal("module-not-importable", lacks)
        return Terminal(
            "job-code-failed",
            f"the job's own code failed{place(_FRAME.findall(text))}: {reason}. This batch is not decided; correct the"
            " code and start again",
        )
    failed = f"the Spark job failed: {plain(_first_line(text))}"
    return WorkerDied("worker-died", failed) if _DIED in text else Retriable("spark-job-failed", failed)


def is_disk_full(text: str) -> bool:
    """Whether this text of an error of Java's, or of an OSError, says so."""
    return _DISK_FULL.search(text) is not None


def carried(error: Exception) -> OnefoldError | None:
    """The onefold error that ended a query or the JVM, or that one of Spark's errors carries; None where none does."""
    if isinstance(error, StreamingQueryException) or is_jvm_gone(error):
        return from_spark(error)
    return opened(str(error)) if isinstance(error, PySparkException | Py4JJavaError) else None


def disk_full(said: str) -> OutOfResources:
    """A disk that Spark's driver or workers write to has no room."""
    return OutOfResources(
        "spark-disk-full",
        f"a disk that Spark writes to is full: {said}. {_where_it_writes()}. Nothing is lost, and it goes on once there"
        " is room",
    )


def _where_it_writes() -> str:
    """The folders that Spark fills, as far as this process knows them."""
    context = SparkContext._active_spark_context
    folders = ""
    with suppress(Py4JError, OSError):  # where no folder takes a temporary file, there is none to name
        folders = "" if context is None else context.getConf().get("spark.local.dir", "")
        folders = folders or tempfile.gettempdir()
    named = f" ({', '.join(folders.split(','))})" if folders else ""
    return f"It writes to its checkpoint, and to spark.local.dir{named}"


def _how_it_ended() -> str:
    """What the process that this one has started as its JVM says with its exit code."""
    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return "it ended or was killed"
    try:
        code = process.wait(_ENDED_WITHIN_S)
    except subprocess.TimeoutExpired:
        return "the connection to it broke"
    if code == _JVM_OUT_OF_MEMORY:
        return (
            "it ended because its heap was full (java.lang.OutOfMemoryError). Raise spark.driver.memory, or make"
            " batches smaller (max_offsets_per_trigger)"
        )
    if code == -signal.SIGKILL:
        return "it was killed by signal 9, as a system does that has no memory left"
    if code in (-signal.SIGTERM, _JVM_TERMINATED):
        return "it was ended by SIGTERM, as where that is sent to all processes of a group and not to its first alone"
    return f"it ended with exit code {code}"


def check_start(query: StreamingQuery, has_batch: Callable[[], bool], within_s: float) -> None:
    """Wait for the query's first batch, or until there is nothing to do yet: by then Spark has started the workers that
    plan. Raises OutOfResources where it could not, and the query has ended before any batch came to its writer.

    Any other end is for `Pipeline.await_termination` to report. After `within_s` the query may go on as it will.
    """
    wait = Wait(within_s, pause_s=0.02, pause_max_s=0.2)
    while query.isActive and not has_batch() and not query.status["message"].startswith("Waiting"):
        if not wait.again():
            return
    if query.isActive or has_batch():
        return
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        if isinstance(failed := from_spark(error), OutOfResources):
            raise failed from error


def is_jvm_gone(error: Exception) -> bool:
    """Whether this process has lost Spark's JVM, by who raised the error: the job's own servers may be down, too."""
    if isinstance(error, Py4JNetworkError):
        return True
    if isinstance(error, Py4JError):  # a call that broke off has no answer of Java's
        text = str(error)
        return text.startswith("An error occurred while calling") and "Trace:" not in text and type(error) is Py4JError
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    raised_by = next((name for name in reversed(modules) if name != "socket"), "")
    return isinstance(error, ConnectionError | EOFError) and raised_by.startswith(("py4j.", "pyspark."))


@contextmanager
def asking_jvm() -> Iterator[None]:
    """Raises Retriable where the JVM that is asked in the block is gone. Also decorates functions."""
    try:
        yield
    except Exception as error:
        if not is_jvm_gone(error):
            raise
        raise from_spark(error) from error


def is_of_spark(error: Exception) -> bool:
    """Whether Spark has raised it, or the connection to Spark's JVM."""
    return isinstance(error, PySparkException | Py4JError) or is_jvm_gone(error)


def is_stopped(spark: SparkSession) -> bool:
    """Whether no query can start in this session any more: its context was stopped, or its JVM is gone."""
    context = getattr(spark, "_sc", None)
    if context is None:
        return False  # Spark Connect: the server's
    try:
        return context._jsc is None or bool(context._jsc.sc().isStopped())
    except (Py4JError, OSError):
        return True


def _first_line(text: str) -> str:
    """Py4J says first which call failed, which tells a reader nothing, and then what Java said."""
    return _PY4J_CALL.sub("", text.strip()).split("\n", 1)[0]


def _lacking(reason: str) -> str | None:
    """What to do where a worker cannot import something; None where the reason is another one."""
    missing = _NOT_THERE.match(reason)
    package = missing[1].partition(".")[0] if missing else ""
    if package in _OURS or extra_of(package) or any(sign in reason for sign in _OTHER_PYTHON):
        return (
            f"Spark's Python workers run another Python than this process ({sys.executable}), and it lacks what onefold"
            f" needs: {reason}. Before Spark starts, set PYSPARK_PYTHON to a Python that has the same packages on every"
            ' machine, or ship one with spark.archives: docs/deploying.md, "The workers\' Python"'
        )
    if missing is None:
        return None
    # A function travels to the workers by the name of its module, unless that is the main script.
    return (
        f"Spark's Python workers cannot import {missing[1]!r}, where a function of this job (a merge, a transformation,"
        " a UDF) is from, or what it needs. This batch is not decided. Install it where they run, or bring it there"
        " with spark.addArtifacts(file, pyfile=True), spark-submit --py-files, or PYTHONPATH before Spark starts; then"
        " start again"
    )


def _is_of_data(error: Exception) -> bool:
    """Whether the same rows fail again: SQLSTATE class 22 (data exception), or an error of `raise_error`."""
    state = None
    with suppress(Py4JError, AssertionError):  # it asks the JVM, which may be gone
        state = error.getSqlState() if isinstance(error, PySparkException) else None
    return state is not None and state.startswith(("22", "P0001"))
