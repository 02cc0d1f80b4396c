"""check_store: the store on SQLite passes, and each wrong one fails by the promise that it breaks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import broken_stores as broken
import pytest
from check_stores import StorePromise, check_store
from store_suite import StoreSuite, raises

from onefold.core.testing import BrokenPromise
from onefold.store.checkpoint_store import CheckpointStore

CALLS = {"acquire", "freeze", "open_epoch", "decide", "complete", "damage", "accept_damage", "adopt"}


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """In memory if there is room, for the many fsyncs."""
    in_memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=in_memory if in_memory.is_dir() else tmp_path) as directory:
        yield f"sqlite:///{directory}/store.db"


def test_the_store_on_sqlite_passes_and_every_call_was_struck_before_inside_and_after(url: str) -> None:
    report = check_store(url, steps_max=5, moments=1)
    assert report.strikes.keys() == CALLS
    assert all(s.before == 1 and s.inside >= 5 and s.after >= 1 for s in report.strikes.values()), report
    assert report.promises[StorePromise.RULES] == sum(name.startswith("test_") for name in vars(StoreSuite))


@pytest.mark.parametrize(
    ("store", "promise", "call", "seen"),
    [
        (
            broken.FencesNobody,
            StorePromise.RULES,
            "fenced by a newer generation",
            "Fenced was not raised, at `with raises(Fenced)",
        ),
        (broken.MergesFirst, StorePromise.WHOLE, "decide", "epoch 1 decided in generation 1"),
        (broken.AnswersEarly, StorePromise.DURABLE, "freeze", "generation 1"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_wrong_store_fails_by_the_promise_that_it_breaks(
    url: str, store: type[CheckpointStore], promise: StorePromise, call: str, seen: str
) -> None:
    with pytest.raises(BrokenPromise) as caught:
        check_store(url, store, modules=("broken_stores", "onefold.store.checkpoint_store"), steps_max=8, moments=0)
    error = caught.value
    print(error)
    assert (error.promise, call in error.call, seen in error.seen) == (promise, True, True)


def test_a_rule_that_expects_an_error_fails_without_it_and_with_another_text() -> None:
    with pytest.raises(AssertionError, match="KeyError was not raised"), raises(KeyError):
        pass
    with pytest.raises(AssertionError, match="'a' is not in 'b'"), raises(ValueError, match="a"):
        raise ValueError("b")
