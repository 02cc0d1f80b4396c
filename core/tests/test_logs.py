"""Where a job's log goes when nobody has said."""

from __future__ import annotations

import logging

import pytest

from onefold.store.job.logs import showing_progress

log = logging.getLogger("onefold")


@pytest.fixture(autouse=True)
def _unconfigured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logging as a script finds it."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(log, "level", logging.NOTSET)


def test_what_a_block_logs_is_shown_and_logging_is_as_it_was_after_it(capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger().handlers.clear()  # pytest has added its own since
    with showing_progress():
        log.info("shown")
        logging.getLogger("else").info("not ours")
    log.warning("later")
    said = capsys.readouterr().err
    assert said.count("\n") == 2 and said.splitlines()[0].endswith("INFO shown")
    assert not logging.getLogger().handlers and log.level == logging.NOTSET


def test_logging_that_somebody_configured_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    mine = logging.NullHandler()
    logging.getLogger().handlers[:] = [mine]
    with showing_progress():
        assert logging.getLogger().handlers == [mine]
        log.info("to mine alone")
    assert capsys.readouterr().err == ""
