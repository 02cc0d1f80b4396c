"""A running pipeline that another process holds between two epochs: it goes on when that says so, dies, or has had its
time, and when the pipeline is to end."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from harness.errors import raises
from harness.support import wait_until

from onefold.core import Committable, ConfigError, EpochRecord, Fenced, Positions, Range, Retriable
from onefold.core.protocol.effects import EpochRequest
from onefold.core.protocol.epoch import Initial
from onefold.core.testing import ModelTwoPhaseSink
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.drivers import PIN, driver_of
from onefold.store.job import holding
from onefold.store.job.holding import TurnLock, held
from onefold.store.job.session import Session
from onefold.store.pins import pinned

VERIFIER = """
import sys, time
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.job.holding import held
with held(CheckpointStore(sys.argv[1]), "p"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
def store(url: str) -> Iterator[CheckpointStore]:
    with closing(CheckpointStore(url)) as store:
        yield store


class Running:
    """A pipeline that runs one epoch after the other, without a pause between them."""

    def __init__(self, url: str) -> None:
        self.session = Session("p", [ModelTwoPhaseSink("sink")], CheckpointStore(url), 5)
        self.session.start(Initial(Positions.of({"t/0": 0})))
        self.is_ending = False
        self.opened = 0
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _write(self, record: EpochRecord) -> tuple[Committable, ...]:
        self.opened = record.epoch
        time.sleep(0.01)
        return ()

    def _run(self) -> None:
        at = 0
        while not self.is_ending:
            span = Range(Positions.of({"t/0": at}), Positions.of({"t/0": at + 1}))
            request = EpochRequest(span, "q", at, "job", self.session.names)
            try:
                self.session.drive(self.session.lifecycle.run_epoch(request), self._write)
            except Fenced:
                return
            at += 1

    def goes_on(self) -> bool:
        """Whether an epoch is opened within a while."""
        before, until_s = self.opened, time.monotonic() + 5
        while self.opened == before and time.monotonic() < until_s:
            time.sleep(0.01)
        return self.opened > before

    def stands(self, store: CheckpointStore) -> bool:
        before = store.facts("p")
        time.sleep(0.3)
        return store.facts("p") == before and not before.unfinished and before.complete == before.last

    def end(self) -> None:
        self.is_ending = True
        self.session.holds.let_go()
        self.thread.join(10)


@pytest.fixture
def running(url: str) -> Iterator[Running]:
    running = Running(url)
    try:
        yield running
    finally:
        running.end()
        running.session.close()


@contextmanager
def verifier(url: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", VERIFIER, url], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        yield process
    finally:
        process.kill()
        process.wait(10)
        process.stdout and process.stdout.close()


def test_it_stands_with_all_epochs_complete_while_it_is_held_and_then_goes_on(
    running: Running, store: CheckpointStore
) -> None:
    for times in range(1, 6):
        assert running.goes_on()
        with held(store, "p") as hold:
            assert hold.is_held and running.stands(store) and running.session.holds.times == times
            hold.go_on()
            assert not hold.is_held and hold.held_s is not None and hold.held_s >= 0.3
            assert running.goes_on(), "before the block has ended"


def test_a_verifier_that_is_killed_leaves_it_running(url: str, running: Running, store: CheckpointStore) -> None:
    with verifier(url) as process:
        assert running.stands(store)
        process.kill()
        assert running.goes_on()


def test_it_goes_on_where_its_time_is_over_and_the_verifier_is_told(
    running: Running, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "HELD_S_MAX", 0.5)
    with held(store, "p") as hold:
        assert running.goes_on()
        with raises(Retriable, "pipeline-went-on", "try again"):
            hold.go_on()


def test_a_pipeline_that_is_to_end_does_not_wait_for_a_verifier(running: Running, store: CheckpointStore) -> None:
    with held(store, "p") as hold:
        began_s = time.monotonic()
        running.end()
        assert not running.thread.is_alive() and time.monotonic() - began_s < 5
        with raises(Retriable, "pipeline-went-on", "stopped"):
            hold.go_on()


def test_a_pipeline_that_another_process_takes_over_was_not_held(running: Running, store: CheckpointStore) -> None:
    with held(store, "p") as hold:
        assert hold.is_held
        store.acquire("p", 0)
        with raises(Retriable, "pipeline-went-on", "it was started"):
            hold.go_on()
        hold.go_on()
    running.thread.join(10)
    assert not running.thread.is_alive(), "it is fenced"


def test_a_pipeline_that_starts_meanwhile_is_told(url: str, store: CheckpointStore) -> None:
    with held(store, "p") as hold:
        assert not hold.is_held
        running = Running(url)
        try:
            assert running.goes_on()
            with raises(Retriable, "pipeline-went-on", "it was started"):
                hold.go_on()
        finally:
            running.end()
            running.session.close()


def test_what_is_not_at_rest_is_asked_for_that_and_held_after_it(running: Running, store: CheckpointStore) -> None:
    holds, began_s = running.session.holds, time.monotonic()
    holds.is_at_rest = False

    def come_to_rest() -> None:
        while not holds.is_asked:
            time.sleep(0.01)
        assert running.goes_on()
        time.sleep(0.3)
        holds.is_at_rest = True

    driver = threading.Thread(target=come_to_rest)
    driver.start()
    with held(store, "p") as hold:
        assert time.monotonic() - began_s > 0.3 and running.stands(store)
        hold.go_on()
    driver.join()
    wait_until(lambda: not holds.is_asked, "nobody asks any more")


def test_who_waits_for_rest_and_gives_up_asks_no_more(
    running: Running, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "WITHIN_S", 0.5)
    running.session.holds.is_at_rest = False
    with raises(Retriable, "pipeline-not-held", "not come to rest within"), held(store, "p"):
        pass
    wait_until(lambda: not running.session.holds.is_asked, "nobody asks any more")
    assert running.goes_on() and running.session.holds.times == 0


def test_what_is_to_end_before_it_is_at_rest_is_not_held(running: Running, store: CheckpointStore) -> None:
    holds = running.session.holds
    holds.is_at_rest = False
    threading.Timer(0.3, holds.let_go).start()
    with raises(Retriable, "pipeline-not-held", "it is to end"), held(store, "p"):
        pass


def test_too_many_that_ask_are_sent_away(url: str, running: Running, store: CheckpointStore) -> None:
    driver = driver_of(store, "p", store.facts("p").generation)
    assert driver is not None and running.goes_on()
    with verifier(url), ExitStack() as waiting:
        for _ in range(holding._ASKERS_MAX + 1):
            asker = waiting.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            asker.settimeout(5)
            asker.connect(f"\0{driver.socket}")
        with raises(Retriable, "pipeline-not-held", "too many others"), held(store, "p"):
            pass


def test_who_still_waits_for_a_turn_is_told_that_it_has_ended(
    url: str, running: Running, store: CheckpointStore
) -> None:
    with verifier(url):
        ending = threading.Timer(0.3, lambda: (running.end(), running.session.close()))
        ending.start()
        with raises(Retriable, "pipeline-not-held", "end"), held(store, "p"):
            pass
        ending.join()


def test_who_has_read_its_note_and_finds_it_ended_is_not_sent_elsewhere(
    url: str, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Running(url)
    found = iter([driver_of(store, "p", store.facts("p").generation)])
    running.end()
    running.session.close()
    monkeypatch.setattr(holding, "driver_of", lambda *of: next(found, None) or driver_of(*of))
    with raises(Retriable, "pipeline-not-held", "it has ended"), held(store, "p"):
        pass


def test_a_second_verifier_has_its_turn_after_the_first(url: str, running: Running, store: CheckpointStore) -> None:
    with verifier(url) as first:
        threading.Timer(0.5, first.kill).start()
        began_s = time.monotonic()
        with held(store, "p") as hold:
            assert time.monotonic() - began_s > 0.4 and running.stands(store)
            hold.go_on()
    assert running.goes_on()


def test_what_does_not_run_need_not_be_held(url: str, store: CheckpointStore) -> None:
    running = Running(url)
    running.end()
    running.session.close()
    with held(store, "p") as hold:
        assert not hold.is_held
        hold.go_on()
    assert hold.held_s is None


@pytest.mark.parametrize("elsewhere", [{"socket": ""}, {"socket": "of-nobody"}, {"machine": "another", "socket": "x"}])
def test_what_cannot_be_asked_says_where_to_ask(
    running: Running, store: CheckpointStore, elsewhere: dict[str, str]
) -> None:
    note = json.loads(pinned(store, "p", PIN) or "")
    store.tell("p", PIN, json.dumps(note | elsewhere))
    with raises(ConfigError, "pipeline-elsewhere", socket.gethostname(), "run the command there"), held(store, "p"):
        pass
    assert running.goes_on()


def test_who_asks_and_goes_away_holds_nothing(running: Running, store: CheckpointStore) -> None:
    driver = driver_of(store, "p", store.facts("p").generation)
    assert driver is not None
    for _ in range(20):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as hasty:
            hasty.connect(f"\0{driver.socket}")
    assert running.goes_on()


def test_a_lock_goes_to_who_waits_for_it() -> None:
    lock, turns, is_over = TurnLock(), [0], threading.Event()

    def greedy() -> None:
        while not is_over.is_set():
            with lock, lock:
                assert lock.acquire(blocking=False)
                lock.release()
                turns[0] += 1
                time.sleep(0.001)

    thread = threading.Thread(target=greedy)
    thread.start()
    try:
        for _ in range(50):
            before = turns[0]
            lock.acquire()
            assert turns[0] <= before + 2
            lock.release()
            time.sleep(0.002)
    finally:
        is_over.set()
        thread.join()
    with lock:
        others: list[bool] = []
        threading.Thread(target=lambda: others.append(lock.acquire(blocking=False))).start()
        time.sleep(0.05)
    assert others == [False]
