"""The connections of a process to the Thrift servers of one HBase."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

from onefold.clients.answers import Unanswered, understood
from onefold.clients.hbase.client_settings import Address, HBaseSettings
from onefold.clients.hbase.thrift_connection import Request, ThriftConnection
from onefold.clients.per_process import PerProcess
from onefold.core.errors import InDoubt, OnefoldError, Retriable

T = TypeVar("T")
IDLE_S_MAX = 50.0  # servers close after 60 s without a word (hbase.thrift.server.socket.read.timeout)
SHUNNED_S = 5.0  # a server that gave no answer is asked last


class Pool:
    """Thread-safe. A connection that had an error is closed, and with it all idle ones to the same server."""

    def __init__(self, settings: HBaseSettings) -> None:
        self._settings = settings
        self._addresses = settings.addresses()
        self._lock = threading.Lock()
        self._idle: list[tuple[float, ThriftConnection]] = []
        self._shunned_until_s: dict[Address, float] = {}
        self._turn = itertools.count()
        self.size = settings.connections * len(self._addresses)
        self._slots = threading.BoundedSemaphore(self.size)
        self._threads = ThreadPoolExecutor(self.size, thread_name_prefix="onefold-hbase")

    @contextmanager
    def connection(self) -> Iterator[ThriftConnection]:
        """Raises Retriable where no server takes a connection: nothing was sent then."""
        with self._slots:
            connection = self._rested() or self._connect()
            try:
                yield connection
            except BaseException:
                connection.close()
                raise
            finally:
                self._give_back(connection)

    def ask(
        self, call: str, request: Request, read: Callable[[Any], T], refusal: Callable[[Exception], OnefoldError]
    ) -> T:
        """What `read` makes of the answer to a request that may be repeated. Raises what `refusal` makes of an
        exception that HBase answers with; and Retriable if there is no answer, or none that can be read. `retry`
        repeats it then."""
        try:
            with self.connection() as connection:
                answer = connection.ask_all(call, [request])[0]
            with understood(f"HBase at {self._settings.servers}"):
                if isinstance(answer, Exception):
                    raise refusal(answer) from answer
                return read(answer)
        except Unanswered as error:
            raise Retriable("hbase-unanswered", str(error)) from error

    def ask_once(self, call: str, requests: Sequence[Request]) -> list[Any]:
        """The answers to requests that may not be repeated, all on one connection. Raises InDoubt where some may have
        taken effect."""
        try:
            with self.connection() as connection:
                return connection.ask_all(call, requests)
        except Unanswered as error:
            raise InDoubt(
                "hbase-write-unanswered", f"{error}. Some of {len(requests)} requests may have taken effect: read again"
            ) from error

    def each(self, tasks: Sequence[Callable[[], T]]) -> list[T | Exception]:
        """Runs tasks in parallel over all connections, and returns what each returned or raised once all have ended.
        A task that has not begun when another fails is left out, with that error: it would wait as long."""
        if len(tasks) == 1:
            return [_outcome(tasks[0])]
        failed: list[Exception] = []

        def run(task: Callable[[], T]) -> T | Exception:
            if failed:
                return failed[0]
            outcome = _outcome(task)
            if isinstance(outcome, Exception):
                failed.append(outcome)
            return outcome

        futures = [self._threads.submit(run, task) for task in tasks]
        try:
            wait(futures)
        except BaseException:  # interrupted: the process would go on with them before it ends
            for future in futures:
                future.cancel()
            raise
        return [future.result() for future in futures]

    def close(self) -> None:
        with self._lock:
            rested, self._idle = self._idle, []
        for _, connection in rested:
            connection.close()

    def _rested(self) -> ThriftConnection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                since_s, connection = self._idle.pop()
            if time.monotonic() - since_s < IDLE_S_MAX and not connection.is_stale():
                return connection
            connection.close()

    def _give_back(self, connection: ThriftConnection) -> None:
        with self._lock:
            if not connection.is_dead:
                self._idle.append((time.monotonic(), connection))
                return
            # Its server has died, or hangs: what rested beside it is no better, and another server is asked first.
            theirs = [other for _, other in self._idle if other.address == connection.address]
            self._idle = [(since_s, other) for since_s, other in self._idle if other.address != connection.address]
            self._shunned_until_s[connection.address] = time.monotonic() + SHUNNED_S
        for other in theirs:
            other.close()

    def _connect(self) -> ThriftConnection:
        first, now_s = next(self._turn) % len(self._addresses), time.monotonic()
        turns = self._addresses[first:] + self._addresses[:first]
        failed: list[str] = []
        for address in sorted(turns, key=lambda address: self._shunned_until_s.get(address, 0.0) > now_s):
            try:
                return ThriftConnection(address, self._settings)
            except Retriable as error:
                self._shunned_until_s[address] = time.monotonic() + SHUNNED_S
                failed.append(error.message)
        raise Retriable("hbase-unreachable", "; ".join(failed))


def _outcome(task: Callable[[], T]) -> T | Exception:
    try:
        return task()
    except Exception as error:
        return error


_pools = PerProcess(dict[HBaseSettings, Pool])


def pool(settings: HBaseSettings) -> Pool:
    """The process's pool for these settings: its connections stay open from one task to the next."""
    with _pools.lock:
        if settings not in _pools.now:
            _pools.now[settings] = Pool(settings)
        return _pools.now[settings]
