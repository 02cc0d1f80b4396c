"""A host: a process that has imported what its pipelines need, and forks one driver after the other.

So what a driver is started with after it failed, or was killed, is there already. The host itself reads no pipeline,
has no client, no thread of Python's and nothing of a user's: what a driver does of that is its own. It forks the next
driver only once the one before has ended. Pipelines on Spark are run in the same way, and their JVM is the driver's, so
that it starts with each: of these the host has what their sources and sinks need.

The daemon holds one end of `control`. A start is a message there, of the modules that are needed, with two sockets: one
that only the driver has, for orders and reports, and one that only the host has, to tell the driver's process id and
how it ended.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from importlib import import_module

from onefold.core.extras import uncollected
from onefold.pipeline import Engine, Pipeline

SIGNALS = (signal.SIGTERM, signal.SIGINT)

_ENGINE = (
    "onefold.engine.driver.flow_run",
    "onefold.engine.driver.opening",
    "onefold.engine.driver.running",
    "onefold.engine.workers.worker_setup",
)
_REQUEST_BYTES = 1 << 16
_SIGNALS_MAX = 1 << 10  # that are taken note of at once
_NUMBER = struct.Struct("<i")


class HostProcess:
    """The daemon's side of it."""

    def __init__(self, names: Sequence[str], logs: str) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ExitStack() as undoing:
            undoing.callback(self._control.close)
            with theirs:
                number = theirs.fileno()
                command = [sys.executable, "-P", "-m", "onefold.daemon.hosting", str(number), logs, *names]
                self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[number], process_group=0)
            undoing.callback(self._process.wait)
            undoing.callback(self.kill)
            threading.Thread(target=self._await_end, name="onefold-host", daemon=True).start()
            undoing.pop_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_gone(self) -> bool:
        """It forks no driver any more: it has ended, or is about to."""
        looking = select.poll()
        with suppress(ValueError):  # it is closed
            looking.register(self._control, 0)
            return bool(looking.poll(0))
        return True

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    def fork(self, modules: Sequence[str], connection: socket.socket) -> Forked:
        """A driver, which has a copy of that socket."""
        told, tells = socket.socketpair()
        with tells:
            request = f"{len(modules)} {' '.join(modules)}".encode()  # one of no bytes would read as the end
            try:
                socket.send_fds(self._control, [request], [connection.fileno(), tells.fileno()])
            except OSError:  # it is gone, or has to go: its end is this driver's
                self.close()
        return Forked(self, told)

    def _await_end(self) -> None:
        self._process.wait()
        self._control.close()

    def close(self) -> None:
        """It ends once its driver has."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)

    def wait(self, within_s: float | None = None) -> int:
        """Until it has ended; how it did. Raises TimeoutExpired."""
        return self._process.wait(within_s)

    def kill(self) -> None:
        """And its driver, and all that this has started: they are one process group."""
        if not self.has_ended:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


class Forked:
    """A driver's process, as its host tells of it."""

    def __init__(self, host: HostProcess, told: socket.socket) -> None:
        self.pid = host.pid  # until it has one of its own
        self.status: int | None = None  # how it ended: negative for a signal
        self._host, self._told = host, told
        self._has_ended = threading.Event()

    def await_end(self) -> None:
        """Call it once. A host that has ended without a word took its driver with it."""
        told: list[int] = []
        with self._told:
            while part := self._told.recv(_NUMBER.size):
                told += _NUMBER.unpack(part)
                self.pid = told[0]
        self.status = told[1] if len(told) > 1 else self._host.wait()
        self._has_ended.set()

    def wait(self, within_s: float | None = None) -> None:
        """Until it has ended, or for that time."""
        self._has_ended.wait(within_s)


def modules_of(pipelines: Sequence[Pipeline]) -> list[str]:
    """What a driver imports to run these, of onefold's own: what a user's module does is no business of a host's."""
    members = [each for pipeline in pipelines for each in (*pipeline.flow.sources(), *pipeline.everyone)]
    engine = _ENGINE if any(isinstance(pipeline.runtime, Engine) for pipeline in pipelines) else ()
    found = {type(each).__module__ for each in members}
    return sorted({*engine, *(name for name in found if name.startswith("onefold."))})


def forked_driver(control: socket.socket) -> socket.socket:
    """Called in a host. Returns in each of its drivers, with the driver's socket and with SIGNALS blocked; in the host
    it does not return: that ends once the daemon has let go of it, or a signal has asked it to, after its driver.

    A host that cannot fork becomes the driver itself, and the next one is another host's."""
    from onefold.engine.workers.fork_server import end_with  # the daemon's own process does without the engine

    driver: int | None = None
    is_ending = False

    def end(_number: int, _frame: object) -> None:
        nonlocal is_ending
        is_ending = True
        with suppress(OSError):
            control.shutdown(socket.SHUT_RDWR)  # before its driver ends: the next one is another host's
        if driver is not None:
            os.kill(driver, signal.SIGTERM)

    woken, wakes = socket.socketpair()  # a signal that comes just before a wait must end that, too
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _nothing)
    for number in SIGNALS:
        signal.signal(number, end)
    mine = os.getpid()
    while True:
        while not is_ending and control not in _awaited(woken, control):
            pass
        if is_ending:
            sys.exit()
        request, files, _, _ = socket.recv_fds(control, _REQUEST_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
        if not request:
            sys.exit()
        channel, tells = (socket.socket(fileno=number) for number in files)
        import_all(request.decode().split()[1:])
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # a driver has no use for `end`
        if is_ending:  # since the request came
            sys.exit()
        driver = _forked()
        if not driver:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for mine_alone in (control, tells, woken, wakes):
                mine_alone.close()
            if os.getpid() != mine:
                end_with(mine)
            return channel
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        channel.close()
        _tell(tells, driver)
        while os.waitid(os.P_PID, driver, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            _awaited(woken)
        ended, driver = driver, None  # until here its id was its own
        _, status = os.waitpid(ended, 0)
        _tell(tells, os.waitstatus_to_exitcode(status))
        tells.close()


def _awaited(woken: socket.socket, *others: socket.socket) -> list[socket.socket]:
    """Waits for a signal, or for something to read from the others. Returns what there is to read from."""
    ready, _, _ = select.select([woken, *others], [], [])
    if woken in ready:
        woken.recv(_SIGNALS_MAX)
    return ready


def _nothing(_number: int, _frame: object) -> None:
    """A signal with a handler wakes."""


def import_all(modules: Sequence[str]) -> None:
    with uncollected():
        for name in modules:
            with suppress(Exception):  # what cannot be imported, the driver says
                import_module(name)
        gc.freeze()  # so that a driver's collections copy no page of it


def _forked() -> int:
    """The process id of a new driver; 0 in that."""
    if threading.active_count() > 1:  # of something that Python is told to import at its start
        return 0
    try:
        return os.fork()
    except OSError:  # the driver meets what is used up, too, and says it
        return 0


def _tell(to: socket.socket, number: int) -> None:
    with suppress(OSError):  # the daemon is gone
        to.sendall(_NUMBER.pack(number))
