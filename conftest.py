"""For all tests: Hypothesis draws the same examples in every run, and times none; HYPOTHESIS_PROFILE=explore asks for
new ones.

`make test` runs them in several processes (`-n auto --dist loadgroup`), each with servers and a Spark of its own;
without `-n` they run one after the other in one process. Tests that share what is dear to start are an `xdist_group`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

PROCESSES_MAX = 4  # each takes up to 4 GB
SOAK_S_MAX = 600
# What CI runs first of the slow tests, when it has not the time for all: by what would be worst to break.
WORTH = ("two_stores", "ways_out", "crashes", "late_attempts", "attacks/", "chain", "beside", "test_pipeline")


def pytest_configure() -> None:
    """A run that somebody ends (`timeout`, a CI's own limit) stops its servers, as one that is interrupted does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """A process for each processor. Servers that somebody named serve one test at a time: then there is only one."""
    if os.environ.get("ONEFOLD_SERVERS") == "external":
        return 0
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(processors, PROCESSES_MAX) if processors > 1 else 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> tuple[bool, int]:
        found = (rank for rank, part in enumerate(WORTH) if part in item.nodeid)
        return item.get_closest_marker("soak") is not None, next(found, len(WORTH))

    if "ONEFOLD_TEST_UNTIL" in os.environ:
        items.sort(key=rank)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """ONEFOLD_TEST_UNTIL is when a run has to end, in seconds since 1970: what would take it beyond is skipped."""
    until_s = float(os.environ.get("ONEFOLD_TEST_UNTIL", "inf"))
    if time.time() + (SOAK_S_MAX if item.get_closest_marker("soak") else 0) > until_s:
        pytest.skip("there is no time left for it in this run; `make test-all` runs it")


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where daemons and commands of the tests keep what is this user's: nothing of the user who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield
