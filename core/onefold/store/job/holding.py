"""A running pipeline that is held between two epochs: by its driver, for a process that asks that on its socket.

The driver listens on an abstract Unix socket, whose name is in its note in the store. It says HELD once no epoch is
open, all are complete, and nothing is on its way between operators; GO_ON ends that, and so does the end of the
connection, of the time, or of the pipeline. It answers GO_ON with WENT_ON only where it has held the pipeline until
then.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from onefold.core.errors import ConfigError, OnefoldError, Retriable
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.drivers import Driver, driver_of
from onefold.store.job.logs import logged_as

log = logging.getLogger("onefold")

HELD_S_MAX = 600.0
WITHIN_S = 300.0  # an epoch that runs may be long
_HELD, _GO_ON, _WENT_ON = b"held", b"go on", b"went on"
_LOOK_S = 0.1
_ASKERS_MAX = 8  # that wait for their turn
_BYTES_MAX = 4096  # of a message
_CREDENTIALS = struct.Struct("3i")  # ucred: pid, uid, gid


class TurnLock:
    """A reentrant lock that goes to the thread that waits for it, however soon the one that has it asks again."""

    def __init__(self) -> None:
        self._lock, self._door = threading.Lock(), threading.Lock()
        self._owner: int | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True) -> bool:
        if self._owner != threading.get_ident():
            if not self._door.acquire(blocking):
                return False
            try:
                if not self._lock.acquire(blocking):
                    return False
            finally:
                self._door.release()
            self._owner = threading.get_ident()
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class HoldServer:
    """The driver's side: holds the pipeline for one process of this user, or of root, after the other. An epoch has
    `turn`; between two of them `settle` completes the last one, or raises what keeps it from that.

    Where an epoch may leave something on its way between operators, the driver sets `is_at_rest` within its turn,
    before and after each, and does without while `is_asked`."""

    def __init__(self, pipeline: str, turn: TurnLock, settle: Callable[[], None]) -> None:
        self._pipeline, self._turn, self._settle = pipeline, turn, settle
        self._listening: socket.socket | None = None
        self._name = ""
        self._lets_go = False
        self.is_asked = False
        self.is_at_rest = True
        self.times = 0  # that it was held: what was planned before is old then

    @property
    def is_waited_for(self) -> bool:
        """Whether an epoch is due for that alone."""
        return self.is_asked and not self.is_at_rest

    def open(self) -> str:
        """The socket's name; empty where the system has no such sockets. A pipeline that is to end is no more held."""
        if self._listening is None:
            self._lets_go = False
            self._name = f"onefold-hold-{uuid.uuid4().hex}"
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                listening.bind(f"\0{self._name}")
                listening.listen(_ASKERS_MAX)
            except OSError:
                listening.close()
                return ""
            self._listening = listening
            threading.Thread(target=self._serve, args=(listening,), name="onefold-hold", daemon=True).start()
        return self._name

    def let_go(self) -> None:
        """The pipeline is to end: a hold ends now. Also from a signal's handler."""
        self._lets_go = True

    def close(self) -> None:
        self.let_go()
        listening, self._listening = self._listening, None
        if listening is not None:
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)  # which wakes its thread
            listening.close()

    def _serve(self, listening: socket.socket) -> None:
        while True:
            try:
                asker, _ = listening.accept()
            except OSError:
                return
            with asker, suppress(OSError), logged_as(pipeline=self._pipeline):  # the asker may be gone
                try:
                    self._hold(asker)
                except OnefoldError as error:
                    asker.send(error.message.encode()[:_BYTES_MAX])
                except Exception:  # the pipeline goes on
                    log.exception("pipeline %r could not be held between two epochs", self._pipeline)

    def _hold(self, asker: socket.socket) -> None:
        credentials = asker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(credentials)
        if uid not in (0, os.geteuid()):
            asker.send(b"it is held for its own user alone, and for root")
            return
        asker.settimeout(_LOOK_S)
        self.is_asked = True
        try:
            while not self._hold_at_rest(asker, pid):
                with suppress(TimeoutError):
                    if not asker.recv(_BYTES_MAX):
                        return  # it has given up
        finally:
            self.is_asked = False

    def _hold_at_rest(self, asker: socket.socket, pid: int) -> bool:
        """Whether it was held, for which it had to be at rest, or is to end."""
        with self._turn:
            if self._lets_go:
                asker.send(b"it is to end")
                return True
            if not self.is_at_rest:
                return False
            self._settle()
            self.times += 1
            asker.send(_HELD)
            log.info("pipeline %r: held between two epochs, for process %d", self._pipeline, pid)
            began_s, said = time.monotonic(), b""
            while not self._lets_go and time.monotonic() - began_s < HELD_S_MAX:
                with suppress(TimeoutError):
                    said = asker.recv(_BYTES_MAX)
                    break
        log.info("pipeline %r: goes on after %.1f s", self._pipeline, time.monotonic() - began_s)
        if said == _GO_ON:
            asker.send(_WENT_ON)
        return True


class Hold:
    """A pipeline that its driver holds, until `go_on`; or one that does not run. `at` says where the store has it."""

    def __init__(self, driver: socket.socket | None, at: Callable[[], tuple[int, int]]) -> None:
        self._driver, self._at, self._was = driver, at, at()
        self._began_s, self._is_over = time.monotonic(), False
        self.held_s: float | None = None  # known once it goes on; None where it did not run

    @property
    def is_held(self) -> bool:
        return self._driver is not None

    def go_on(self) -> None:
        """Raises Retriable where it went on by itself, or another process has begun it; without effect the second
        time."""
        if self._is_over:
            return
        self._is_over, after_s, has_stood = True, time.monotonic() - self._began_s, self._at() == self._was
        driver, self._driver = self._driver, None
        if driver is not None:
            self.held_s, answer = after_s, b""
            with suppress(OSError):
                driver.send(_GO_ON)
                answer = driver.recv(_BYTES_MAX)
            has_stood &= answer == _WENT_ON
        if not has_stood:
            raise Retriable(
                "pipeline-went-on",
                f"the pipeline went on while it was looked at, after at most {after_s:.0f} s: it was started, stopped,"
                f" or held for {HELD_S_MAX:.0f} s. What was seen does not count: try again, or stop it before",
            )


@contextmanager
def held(store: CheckpointStore, pipeline: str) -> Iterator[Hold]:
    """Hold the pipeline between two epochs, where it runs, for the block at most. It goes on, too, where this process
    ends.

    Raises ConfigError where it runs and cannot be held from here, Retriable where it is not at rest in time."""

    def at() -> tuple[int, int]:
        facts = store.facts(pipeline)
        return facts.generation, facts.last.epoch if facts.last else 0

    none = Hold(None, at)
    driver = driver_of(store, pipeline, at()[0])
    if driver is None:
        yield none
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(WITHIN_S)
        answer = b""
        try:
            if not driver.socket:
                raise ConnectionRefusedError
            connection.connect(f"\0{driver.socket}")
            answer = connection.recv(_BYTES_MAX)
        except BlockingIOError:
            answer = b"too many others wait for their turn"
        except ConnectionResetError:
            answer = b""  # it has ended before the asker's turn
        except TimeoutError:
            answer = f"it has not come to rest within {WITHIN_S:.0f} s, behind an epoch".encode()
        except OSError:
            if driver_of(store, pipeline, at()[0]) == driver:
                raise _unreachable(pipeline, driver) from None
            answer = b""  # it has ended before it was asked
        if answer != _HELD:
            because = answer.decode(errors="replace") or "it has ended"
            raise Retriable(
                "pipeline-not-held",
                f"pipeline {pipeline!r} could not be held between two epochs: {because}. Try again, or stop it before",
            )
        yield Hold(connection, at)


def _unreachable(pipeline: str, driver: Driver) -> ConfigError:
    return ConfigError(
        "pipeline-elsewhere",
        f"pipeline {pipeline!r} runs in process {driver.pid} of {driver.host}, which cannot be held between two epochs"
        " from here: run the command there, in the same container, or stop the pipeline before. Where you know that"
        " process dead, `onefold txn resolve --take-over` says so to the store",
    )
