"""Forks workers from a process that has no connections, clients or threads of the driver's.

A process that is forked while clients of Kafka or Postgres are there inherits their locks and sockets, but none of
their threads. So the fork server is forked from the driver before the first of these is made, and only imports and
forks. Workers end when it ends, and it ends when the driver does.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import struct
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial

from onefold.core.errors import OutOfResources

Work = Callable[[socket.socket, list[socket.socket]], None]

_REQUEST = struct.Struct("<cI")
_ANSWER = struct.Struct("<i")
_FORK, _END = b"F", b"E"
_SOCKETS_MAX = 250  # that one message carries; Linux takes 253
_PR_SET_PDEATHSIG = 1
_DRIVERS_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class ForkServerLost(Exception):
    """The process that forks workers has ended, and so have they."""


class ForkServer:
    """The driver's side of it. `work(control, links)` is what a worker does with its sockets. `warm` is called once, in
    the fork server, while the driver goes on: what it imports, no worker has to. Raises OutOfResources."""

    def __init__(self, work: Work, warm: Callable[[], None]) -> None:
        fill_standard_streams()
        driver = os.getpid()
        with ExitStack() as undoing:
            try:
                self._socket, theirs = socket.socketpair()
                undoing.callback(self._socket.close)
                with theirs:
                    self._pid = _fork()
                    if self._pid == 0:
                        self._socket.close()
                        _in_child(driver, partial(_serve, theirs, work, warm))
            except OSError as error:
                raise OutOfResources(
                    "fork-server-not-started",
                    f"the process that is to fork the workers cannot be started: {error.strerror}. The machine, or the"
                    " user's limits (ulimit -u, pids.max), allow no further process, or there is no memory for one",
                ) from error
            undoing.pop_all()

    def fork(self, control: socket.socket, links: Sequence[socket.socket]) -> int:
        """A new worker, which has the sockets now; returns its process id. Raises ForkServerLost."""
        sockets = [control, *links]
        try:
            return self._answer_to(_REQUEST.pack(_FORK, len(sockets)), sockets)
        finally:
            for each in sockets:
                each.close()

    def end(self, pid: int) -> int:
        """Kill a worker, and wait until it is gone. Returns how it ended: negative for a signal."""
        try:
            return self._answer_to(_REQUEST.pack(_END, pid))
        except ForkServerLost:
            return -signal.SIGKILL  # by its end

    def close(self) -> None:
        """All workers end."""
        self._socket.close()
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def _answer_to(self, request: bytes, sockets: Sequence[socket.socket] = ()) -> int:
        files = [each.fileno() for each in sockets]
        try:
            for at in range(0, len(files) or 1, _SOCKETS_MAX):
                socket.send_fds(self._socket, [request], files[at : at + _SOCKETS_MAX])
            answer = self._socket.recv(_ANSWER.size, socket.MSG_WAITALL)
        except (BrokenPipeError, ConnectionResetError):
            answer = b""
        if len(answer) < _ANSWER.size:
            raise ForkServerLost
        return int(_ANSWER.unpack(answer)[0])


def _serve(driver: socket.socket, work: Work, warm: Callable[[], None]) -> None:
    with suppress(Exception):  # what cannot be imported, the workers say
        warm()
    mine, workers = os.getpid(), set[int]()
    while True:
        request, files, _, _ = socket.recv_fds(driver, _REQUEST.size, _SOCKETS_MAX)
        if len(request) < _REQUEST.size:
            break
        kind, value = _REQUEST.unpack(request)
        if kind == _FORK:
            while request and len(files) < value:
                request, more, _, _ = socket.recv_fds(driver, _REQUEST.size, _SOCKETS_MAX)
                files += more
            if not request:  # the driver has ended in between
                break
            sockets = [socket.socket(fileno=number) for number in files]
            pid = _fork()
            if pid == 0:
                driver.close()
                _in_child(mine, partial(_work, work, sockets))
            for each in sockets:
                each.close()
            workers.add(pid)
            driver.sendall(_ANSWER.pack(pid))
        else:
            workers.discard(value)
            driver.sendall(_ANSWER.pack(_end(value)))
    for pid in workers:
        _end(pid)


def _end(pid: int) -> int:
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def fill_standard_streams() -> None:
    """Where one is closed, a socket would get its number, and whatever is printed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free, which is this one; for programs that are started, too.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def end_with(parent: int) -> None:
    """From now on this process is killed when `parent` ends, which has forked it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that was set
        os._exit(1)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed before this process began
            with suppress(OSError, ValueError):  # closed since, or its reader is gone
                stream.flush()


def _fork() -> int:
    _flush()
    # So that the child's first full collection looks at no object of this process, and copies no page: 0.1 s and 35 MB
    # a worker. To collect before it takes as long as that at least, for 0.2 MB.
    gc.freeze()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a user's threads, which the child does without
        pid = os.fork()
    if pid:
        gc.unfreeze()
    return pid


def _in_child(parent: int, run: Callable[[], None]) -> None:
    """Never returns. The signals that end a driver in good order are the driver's own business."""
    status = 1
    try:
        _heed_no_signals()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a driver's parent may ignore it, and nobody could be waited for
        end_with(parent)
        run()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(status)


def _heed_no_signals() -> None:
    """In this process. A program that it starts inherits no handler, as it would inherit that they are ignored."""
    for number in _DRIVERS_SIGNALS:
        signal.signal(number, lambda _number, _frame: None)


def _work(work: Work, sockets: list[socket.socket]) -> None:
    """A process that a function of the user's forks can be ended by these signals, as it is used to: a pool of
    processes waits for the end of those that it terminates. They are blocked until it can, so that none is lost."""
    os.register_at_fork(
        before=partial(signal.pthread_sigmask, signal.SIG_BLOCK, _DRIVERS_SIGNALS),
        after_in_parent=partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, _DRIVERS_SIGNALS),
        after_in_child=partial(_leave, sockets),
    )
    work(sockets[0], sockets[1:])


def _leave(sockets: list[socket.socket]) -> None:
    """In a process that a worker forked: it handles signals, and has no part in the worker's sockets, whose end would
    not be noticed as long as it lives."""
    for each in sockets:
        each.close()
    for number in _DRIVERS_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _DRIVERS_SIGNALS)
