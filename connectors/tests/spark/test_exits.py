"""What a process ends with: README's exit codes, one line on stderr, and what it says before."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterator
from contextlib import suppress

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import AnalysisException, StreamingQueryException

from onefold.core import BadRecord, ConfigError, Fenced, Retriable
from onefold.spark import exit_codes
from onefold.spark.errors import exits
from onefold.spark.errors.failures import seal
from onefold.store.job.logs import Console

FENCED = Fenced("taken-over", "generation 3 was taken over")


@pytest.fixture(autouse=True)
def _unconfigured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Logging as a script finds it, once a test has cleared the handlers that pytest adds."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.delenv("ONEFOLD_DEBUG", raising=False)
    level = exits.log.level
    yield
    exits.log.setLevel(level)


def ended_by(error: BaseException) -> int:
    with pytest.raises(SystemExit) as ended, exit_codes():
        raise error
    assert isinstance(ended.value.code, int)
    return ended.value.code


def refused_in(module: str) -> Exception:
    """As a module's own frame raises it."""
    try:
        exec("raise ConnectionRefusedError('nobody listens there')", {"__name__": module})
    except ConnectionRefusedError as error:
        return error
    raise AssertionError(module)


@pytest.mark.parametrize("error", [FENCED, Retriable("kafka-unreachable", "no answer"), ConfigError("x", "wrong")])
def test_an_error_of_onefold_is_one_line_and_its_exit_code(
    error: Fenced | Retriable | ConfigError, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended_by(error) == error.exit_code
    assert capsys.readouterr().err == f"{type(error).__name__}: {error}\n"


def test_an_interrupt_is_one_line_and_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended_by(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_spark_error_ends_with_the_error_that_it_carries() -> None:
    (sealed,) = seal(BadRecord("record-unreadable", "o/0"))
    text = f"Job aborted\nTraceback (most recent call last):\nValueError: x\n{sealed}"
    assert ended_by(StreamingQueryException(text)) == 65
    assert ended_by(AnalysisException(text)) == 65


def test_a_query_that_ended_by_itself_may_be_started_again_and_its_own_code_not() -> None:
    assert ended_by(StreamingQueryException("Job aborted: ExecutorLostFailure")) == 75
    assert ended_by(StreamingQueryException("Traceback (most recent call last):\nValueError: x")) == 70


@pytest.mark.slow
def test_a_jvm_that_was_killed_is_one_line_and_75(capsys: pytest.CaptureFixture[str]) -> None:
    killed = (
        Py4JNetworkError("Answer from Java side is empty"),
        Py4JError("An error occurred while calling o12.start"),
    )
    for error in (*killed, refused_in("py4j.clientserver"), refused_in("pyspark.serializers")):
        assert ended_by(error) == 75
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        refused_in("psycopg"),
        AnalysisException("[UNRESOLVED_COLUMN] amout"),
        Py4JError("An error occurred while calling o12.start. Trace:\njava.lang.NoSuchMethodException"),
        Py4JError("Foo does not exist in the JVM"),
    ],
)
def test_any_other_exception_stays_what_it_is(error: Exception) -> None:
    with pytest.raises(type(error)), exit_codes():
        raise error


def test_it_decorates_a_function_too() -> None:
    @exit_codes()
    def main() -> None:
        raise FENCED

    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 73


def test_the_traceback_comes_too_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ONEFOLD_DEBUG", "1")
    assert ended_by(FENCED) == 73
    said = capsys.readouterr().err
    assert said.startswith("Traceback") and said.endswith(f"Fenced: {FENCED}\n")


def test_epochs_are_lines_in_a_file_and_one_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "8")  # what is beyond it would begin a second line, which stays

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, shown in (
        (io.StringIO(), "epoch 1 and more\nepoch 2 and more\nslow and long\n"),
        (Terminal(), "epoch 1\r\x1b[Kepoch 2\r\x1b[Kslow and long\n"),
    ):
        console = Console(stream)
        console.setFormatter(logging.Formatter("%(message)s"))
        for name, text in (
            ("onefold.epochs", "epoch 1 and more"),
            ("onefold.epochs", "epoch 2 and more"),
            ("onefold", "slow and long"),
        ):
            console.handle(logging.LogRecord(name, logging.INFO, "query.py", 1, text, None, None))
        assert stream.getvalue() == shown


def test_a_line_of_a_forked_process_does_not_stand_behind_the_last_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    written: list[str] = []

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    console = Console(Terminal())
    console.setFormatter(logging.Formatter("%(message)s"))
    console.handle(logging.LogRecord("onefold.epochs", logging.INFO, "query.py", 1, "epoch 1", None, None))
    monkeypatch.setattr("os.getpid", lambda: -1)
    console.handle(logging.LogRecord("onefold", logging.INFO, "worker.py", 1, "of a worker", None, None))
    assert written == ["epoch 1", "\r\x1b[Kof a worker\n"], "each in one piece: others write to the terminal, too"


def test_a_log_without_a_reader_ends_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    console = Console(stream := os.fdopen(writing, "w"))
    console.handle(logging.LogRecord("onefold", logging.INFO, "query.py", 1, "not heard", None, None))
    with suppress(BrokenPipeError):
        stream.close()


def test_what_a_job_says_needs_no_logging_to_be_configured(capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger().handlers.clear()
    with exit_codes():
        logging.getLogger("onefold.epochs").info("pipeline 'orders': epoch 3")
        logging.getLogger("else").info("not ours")
    assert capsys.readouterr().err.endswith("INFO pipeline 'orders': epoch 3\n")


def test_logging_that_somebody_configured_stays_as_it_is() -> None:
    mine = logging.NullHandler()
    logging.getLogger().handlers[:] = [mine]
    with exit_codes():
        assert logging.getLogger().handlers == [mine]
        assert exits.log.level == logging.NOTSET


def test_py4js_own_tracebacks_do_not_reach_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger().handlers.clear()
    exits.show_progress()
    logging.getLogger("py4j.clientserver").error("There was an exception", exc_info=ValueError("x"))
    logging.getLogger("py4j.java_gateway").error("Connection reset")
    logging.getLogger("onefold").warning("kept")
    said = capsys.readouterr().err
    assert said.endswith("WARNING kept\n") and said.count("\n") == 1
