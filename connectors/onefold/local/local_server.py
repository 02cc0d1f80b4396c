"""What the servers have in common: a directory, a state file, one start at a time, a careful end."""

from __future__ import annotations

import dataclasses
import signal
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from onefold.core.writing.durable_files import check_owner
from onefold.local.owned import Owned
from onefold.local.process import ProcessRef, ServerState, children, kill_tree, log_tail
from onefold.local.resources import HOST, choose_port, exclusive, is_free, require_space
from onefold.local.server_errors import LocalServerError, clear_disk_errors, never_started

if TYPE_CHECKING:
    from rich.progress import Progress

_SPACE_BYTES_MIN = 1024 * 1024 * 1024
_LOCK_S_MAX = 900.0  # another start may be downloading
_READY_S_MAX = 120.0  # after a crash a server first replays its log
_PORT_S_MAX = 10.0
_LOG_BYTES_MAX = 16 * 1024 * 1024


@dataclass(frozen=True)
class ServerStatus:
    """A server as it is now. `detail` is a sentence for people; `address` is what a client connects to."""

    name: str
    running: bool
    pid: int | None
    port: int | None
    log: Path
    detail: str
    address: str | None = None


class LocalServer(Owned):
    """One server of one directory. Several objects, in several processes, may speak of the same server."""

    name: str

    def __init__(
        self, directory: Path | str, port: int | None = None, *, settings: Mapping[str, str] | None = None
    ) -> None:
        """`port`: this one or an error; None takes the one of the last start, or a free one.

        `settings` are added to the server's own configuration at each start.
        """
        self.directory = Path(directory).absolute()
        self.home = self.directory / self.name
        self.log_path = self.directory / "logs" / f"{self.name}.log"
        self._asked_port = port
        self._settings = dict(settings or {})
        self._state_path = self.directory / f"{self.name}.json"
        self._lock_path = self.directory / f"{self.name}.lock"

    @property
    def access(self) -> str:
        """Who may use it, as `onefold local up` says it."""
        return "anybody on this machine may use it: it asks for no password"

    @property
    def port(self) -> int:
        """The port of the last start. Raises LocalServerError if there was none."""
        state = ServerState.load(self._state_path)
        if state is None:
            raise never_started(self.name, self.directory)
        return state.port

    def start(self, progress: Progress | None = None) -> ServerStatus:
        """Starts the server and waits until it answers; keeps it as it is if it runs. Data of earlier runs stay."""
        self._make_directory()
        with exclusive(self._lock_path, _LOCK_S_MAX, f"starting {self.name}"):
            before = ServerState.load(self._state_path)
            running = before.running() if before else None
            if before is not None and running is not None:
                self._refuse_another_port(before)
                if self._await_ready(before, running):
                    return self._status(before, running, "was already running")
            require_space(self.directory, _SPACE_BYTES_MIN, f"starting {self.name}")
            with clear_disk_errors(self.directory):
                state = self._start_anew(before, progress)
            self._started_it = True
            return self._status(state, state.process, _how_it_started(before, state))

    def stop(self) -> bool:
        """Ends the server in order; False if it isn't running. Ends no process but the one that `start` started."""
        if not self._state_path.exists():
            return False
        with exclusive(self._lock_path, _LOCK_S_MAX, f"stopping {self.name}"):
            state = ServerState.load(self._state_path)
            if state is None or state.process is None:
                return False
            running = state.running()
            if running is not None:
                self._end(running)
            dataclasses.replace(state, process=None).save(self._state_path)
            return running is not None

    def kill(self) -> None:
        """SIGKILL for the server and its children, as a crash would: for crash tests. `start` brings it back."""
        state = ServerState.load(self._state_path)
        running = state.running() if state else None
        if state is not None and running is not None:
            kill_tree(running)
            # A process of many threads looks gone a little before the last of them lets go of the port.
            deadline = time.monotonic() + _PORT_S_MAX
            while not is_free(state.port) and time.monotonic() < deadline:
                time.sleep(0.02)

    def restart(self) -> ServerStatus:
        """`stop` and `start`."""
        self.stop()
        return self.start()

    def pause(self) -> None:
        """SIGSTOP for the server and its children: it looks alive and answers nothing, until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        state = ServerState.load(self._state_path)
        running = state.running() if state else None
        if running is None:
            raise LocalServerError(
                "server-not-running", f"{self.name} does not run in {self.directory}: start it first"
            )
        running.signal(number)  # first, so that it starts no more of them
        for child in children(running):
            child.signal(number)

    def status(self) -> ServerStatus:
        state = ServerState.load(self._state_path)
        if state is None:
            return ServerStatus(self.name, False, None, None, self.log_path, "never started here")
        running = state.running()
        if running is not None:
            return self._status(state, running, f"running since {_as_shown(state.started_at)}")
        detail = f"process {state.process.pid} has died" if state.process else "stopped"
        return self._status(state, None, detail)

    @abstractmethod
    def _prepare(self, progress: Progress | None) -> None:
        """Programs and an empty data folder, whichever is not there yet."""

    @abstractmethod
    def _launch(self, port: int, before: ServerState | None) -> ServerState:
        """Starts the process; doesn't wait for it."""

    @abstractmethod
    def _is_ready(self, port: int) -> bool:
        """True if the server does what clients need. Bounded to a few seconds."""

    @abstractmethod
    def _end(self, process: ProcessRef) -> None:
        """Asks the process to end, and makes it end if it doesn't."""

    @abstractmethod
    def _address(self, port: int) -> str:
        """What a client connects to."""

    def _start_anew(self, before: ServerState | None, progress: Progress | None) -> ServerState:
        if self._asked_port is not None:  # before a long download, not after it
            choose_port(self.name, self._asked_port, None)
        self._prepare(progress)
        port = choose_port(self.name, self._asked_port, before.port if before else None)
        if self.log_path.exists() and self.log_path.stat().st_size > _LOG_BYTES_MAX:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
        state = self._launch(port, before)
        process = state.process
        assert process is not None
        try:
            state = dataclasses.replace(state, started_at=datetime.now(UTC).isoformat(timespec="seconds"))
            state.save(self._state_path)
            if not self._await_ready(state, process):
                raise LocalServerError("server-ended", f"{self.name} ended while it started; {log_tail(self.log_path)}")
        except BaseException:
            kill_tree(process)  # nobody would know of it
            dataclasses.replace(state, process=None).save(self._state_path)
            raise
        return state

    def _await_ready(self, state: ServerState, process: ProcessRef) -> bool:
        """False if the process ended meanwhile."""
        deadline = time.monotonic() + _READY_S_MAX
        while not self._is_ready(state.port):
            if not process.alive():
                return False
            if time.monotonic() > deadline:
                raise LocalServerError(
                    "server-not-answering",
                    f"{self.name} does not answer on port {state.port} after {_READY_S_MAX:.0f} s; "
                    f"{log_tail(self.log_path)}",
                )
            time.sleep(0.05)
        return True

    def _refuse_another_port(self, state: ServerState) -> None:
        if self._asked_port not in (None, state.port):
            raise LocalServerError(
                "server-already-running",
                f"{self.name} is already running in {self.directory}, on port {state.port} and not {self._asked_port}: "
                "stop it first (`onefold local down`), or choose another directory",
            )

    def _make_directory(self) -> None:
        check_owner(self.directory)
        with clear_disk_errors(self.directory):
            self.log_path.parent.mkdir(parents=True, exist_ok=True)
            self.home.mkdir(exist_ok=True)
            ignore = self.directory / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n")  # data and logs of a development server are nobody's source

    def _status(self, state: ServerState, running: ProcessRef | None, detail: str) -> ServerStatus:
        address = self._address(state.port) if running else None
        pid = running.pid if running else None
        return ServerStatus(self.name, running is not None, pid, state.port, self.log_path, detail, address)


def _how_it_started(before: ServerState | None, state: ServerState) -> str:
    detail = "started"
    if before is not None and before.process is not None:
        detail += f"; its process from before ({before.process.pid}) had died, its data are kept"
    if before is not None and before.port != state.port:
        detail += f"; on another port than before ({before.port})"
    return detail


def _as_shown(at: str | None) -> str:
    return f"{datetime.fromisoformat(at):%Y-%m-%d %H:%M:%S} UTC" if at else "an unknown time"


def local_address(port: int) -> str:
    return f"{HOST}:{port}"
