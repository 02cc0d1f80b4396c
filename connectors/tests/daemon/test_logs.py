"""What the daemon logs as JSON: each line names its pipeline and generation, an error's line its code."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.daemon_stubs import Query, run_of

from onefold.core import Fenced, Positions, Retriable
from onefold.core.protocol.epoch import Initial
from onefold.core.testing import ModelTwoPhaseSink
from onefold.daemon.hosting.log_tail import LogTail
from onefold.daemon.hosting.logs import log_as_json
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.job.logs import current, logged_as
from onefold.store.job.session import Session


@pytest.fixture
def _logging() -> Iterator[None]:
    loggers = [logging.getLogger(), logging.getLogger("onefold")]
    before = [(logger, logger.handlers[:], logger.level) for logger in loggers]
    yield
    for logger, handlers, level in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)


@pytest.mark.usefixtures("_logging")
def test_each_line_has_its_fields(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log_as_json()
    session = Session("orders", [ModelTwoPhaseSink("sink")], CheckpointStore(f"sqlite:///{tmp_path}/s.db"), 0)
    errors = [Retriable("test-down", "the server is down"), Fenced("taken-over", "another process runs it")]

    class Failing(Query):
        def begin(self) -> None:
            session.start(Initial(Positions.of({"t/0": 0})))
            raise errors.pop(0)

    run = run_of(Failing())
    run.start()
    assert run.join(10)
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    said = [(line["message"].split(":")[-1].strip(), line.get("code"), line["generation"]) for line in lines]
    assert said == [
        ("generation 1", None, 1),
        ("the server is down [test-down]", "test-down", 1),
        ("generation 2", None, 2),
        ("another process runs it [taken-over]", "taken-over", 2),
    ]
    assert {line["pipeline"] for line in lines} == {"orders"}
    assert "positional_args" not in lines[0]
    assert not current()


@pytest.mark.usefixtures("_logging")
def test_py4js_own_tracebacks_are_no_part_of_it(capfd: pytest.CaptureFixture[str]) -> None:
    log_as_json()
    logging.getLogger("py4j.clientserver").error("There was an exception", exc_info=ValueError("x"))
    logging.getLogger("other").error("kept")
    assert [json.loads(line)["message"] for line in capfd.readouterr().err.splitlines()] == ["kept"]


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    found = logging.getLogger("onefold.test-tail")
    found.setLevel(logging.INFO)
    found.propagate = False
    yield found
    found.handlers.clear()


def test_the_last_lines_of_each_pipeline_are_kept_and_those_of_none_are_everyones(logger: logging.Logger) -> None:
    tail = LogTail(["orders", "clicks"])
    logger.addHandler(tail)
    with logged_as(pipeline="orders"):
        for number in range(300):
            logger.info("line %d", number)
        logging.getLogger("onefold.epochs").addHandler(tail)
        logging.getLogger("onefold.epochs").warning("epoch 4")
        logging.getLogger("onefold.epochs").removeHandler(tail)
    logger.warning("all of it")
    assert [line.message for line in tail.of("orders")] == [*(f"line {at}" for at in range(101, 300)), "all of it"]
    (shared,) = tail.take("clicks")
    assert (shared.level, shared.message) == ("warning", "all of it")
    assert tail.take("clicks") == () and len(tail.of("orders")) == 200


def test_a_line_that_is_long_keeps_its_end_where_a_traceback_says_what_it_was(logger: logging.Logger) -> None:
    tail = LogTail()
    logger.addHandler(tail)
    with logged_as(pipeline="orders"):
        try:
            raise ValueError("x" * 5000 + " is wrong")
        except ValueError:
            logger.exception("it failed")
    (line,) = tail.of("orders")
    assert line.level == "error" and line.message.endswith(" is wrong") and len(line.message) < 4100
    logger.warning("of no pipeline")
    assert tail.of("orders") == [line]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_worker_that_is_forked_while_lines_are_taken_logs_all_the_same(logger: logging.Logger) -> None:
    tail, is_taking, is_over = LogTail(["orders"]), threading.Event(), threading.Event()
    logger.addHandler(tail)

    def take() -> None:
        with tail._changing:
            is_taking.set()
            assert is_over.wait(20)

    taking = threading.Thread(target=take)
    taking.start()
    assert is_taking.wait(20)
    if not (pid := os.fork()):
        signal.alarm(5)
        logger.warning("from a worker")
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    is_over.set()
    taking.join()
    assert status == 0


def test_who_logs_what_has_no_form_or_is_no_utf_8_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    tail = LogTail(["orders"])
    tail.handle(logging.makeLogRecord({"name": "a", "msg": "%d rows", "args": ("many",)}))
    assert "many" in capsys.readouterr().err
    tail.handle(logging.makeLogRecord({"name": "a", "msg": os.fsdecode(b"in a\xff")}))
    (line,) = tail.of("orders")
    assert line.message == r"in a\udcff" and line.model_dump_json()
