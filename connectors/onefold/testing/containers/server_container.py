"""What servers in containers have in common: one container each, with an address and data that outlive a kill."""

from __future__ import annotations

import socket
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import docker.errors

from onefold.local.local_server import ServerStatus
from onefold.local.owned import Owned
from onefold.local.resources import choose_port
from onefold.testing.container_errors import ContainerError
from onefold.testing.containers.cut import Cut, Direction, Peer
from onefold.testing.containers.engine import create, engine, image_of
from onefold.testing.containers.network import Network

_READY_S_MAX = 120.0
_STOP_S_MAX = 30
_CONNECT_S_MAX = 2.0
_LINES_MAX = 15


class ServerContainer(Owned):
    """A server of one container. `start` brings it back after `kill` and `stop`, at the same address, with its data;
    `remove`, and the end of a `with`, remove both."""

    name: str
    image: str  # its name without `onefold/` and version
    ports: tuple[int, ...]  # those that clients connect to, the server's own first
    shm = "64m"

    def __init__(self, network: Network | None = None, *, settings: Mapping[str, str] | None = None) -> None:
        """`network`: where others reach it; None makes one for this server alone.

        `settings` are added to the server's own configuration.
        """
        self.network = network or Network()
        self._owns_network = network is None
        self.settings = dict(settings or {})
        self._address: str | None = None
        self._published: dict[int, int] = {}
        self._made: Any = None
        self._cuts: list[Cut] = []

    @property
    def address(self) -> str:
        """Its own, in its network: for other containers, and where the network is `direct` for this process too."""
        if self._address is None:
            self._address = self.network.next_address()
        return self._address

    @property
    def addresses(self) -> list[str]:
        return [self.address]

    @property
    def port(self) -> int:
        """That of `address`, by which this process reaches it."""
        return int(self.reached_at(self.ports[0]).rpartition(":")[2])

    def reached_at(self, port: int) -> str:
        """Where this process finds that port of the container: `host:port`."""
        self.network.start()
        if self.network.direct:
            return f"{self.address}:{port}"
        if port not in self._published:
            self._published[port] = choose_port(f"{self.name}'s port {port}", None, None)
        return f"{engine().host()}:{self._published[port]}"

    def start(self, progress: object = None) -> ServerStatus:
        """Starts the server and waits until it answers; keeps it as it is if it runs. Data of earlier runs stay.

        Raises ContainerError without an engine or an image, and with the end of its log if it ends or does not answer.
        """
        del progress  # images are there, or it is an error
        before = self.status()
        if self._made is None:
            self._started_it = True
            self._make()
        elif not before.running:
            self._forget_cuts()
            self._call("start")
        self._await_ready()
        return self.status()

    def stop(self) -> bool:
        """Ends the server in order; False if it isn't running. `start` brings it back."""
        running = self.status().running
        if running:
            self._call("stop", timeout=_STOP_S_MAX)
            self._forget_cuts()
        return running

    def kill(self) -> None:
        """SIGKILL for all of the container, as a crash would: for crash tests. `start` brings it back."""
        if self.status().running:
            self._call("kill")
            self._call("wait")
            self._forget_cuts()

    def restart(self) -> ServerStatus:
        """`stop` and `start`."""
        self.stop()
        return self.start()

    def pause(self) -> None:
        """Holds all its processes still: it looks alive and answers nothing, until `resume`."""
        self._require_running()
        if not self.is_paused:
            self._call("pause")

    def resume(self) -> None:
        self._require_running()
        if self.is_paused:
            self._call("unpause")

    @property
    def is_paused(self) -> bool:
        return bool(self._state().get("Paused"))

    def cut(self, peer: Peer = None, direction: Direction = "both") -> Cut:
        """Drops the packets between it and `peer`: another server, an address (`network.gateway` is this machine's), or
        None for everybody. `incoming` drops what comes to it, `outgoing` what it sends. In force when it returns, until
        `mend` or the end of its `with`."""
        self._require_running()
        self._cuts.append(Cut(self._made, self.name, peer, direction))
        return self._cuts[-1]

    def mend(self) -> None:
        """Ends all cuts of this container."""
        while self._cuts:
            self._cuts.pop().mend()

    def remove(self) -> None:
        """Removes the container with its data, and the network if it was made for it alone."""
        if self._made is not None:
            with suppress(docker.errors.NotFound):  # somebody has removed it
                self._container.stop()
            self._made = None
            self._forget_cuts()
        if self._owns_network:
            self.network.remove()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._started_it:
            self.remove()

    @property
    def pid(self) -> int | None:
        """The first process of the container, by its number on the engine's machine; None while nothing runs."""
        return self._state().get("Pid") or None

    def status(self) -> ServerStatus:
        """As of a local server. `log` is the engine's file, on its machine; `logs()` reads it from anywhere."""
        state = self._state()
        running = bool(state.get("Running"))
        if not state:
            return ServerStatus(self.name, False, None, None, Path(), "never started here")
        detail = "paused" if state["Paused"] else f"running since {state['StartedAt']}"
        if not running:
            detail = f"ended with exit code {state['ExitCode']}"
        address = self.reached_at(self.ports[0]) if running else None
        log = Path(self._made.attrs.get("LogPath", ""))
        return ServerStatus(self.name, running, self.pid if running else None, self.port, log, detail, address)

    def logs(self, lines_max: int | None = None) -> str:
        """What the server said, the last `lines_max` lines of it, in all its lives."""
        if self._made is None:
            return ""
        written: bytes = self._made.logs(tail=lines_max or "all")
        return written.decode(errors="replace")

    def execute(self, *command: str, user: str = "") -> str:
        """Runs a command in the container and returns what it prints. Raises ContainerError if it fails."""
        self._require_running()
        status, output = self._made.exec_run(list(command), user=user)
        said: str = output.decode(errors="replace")
        if status != 0:
            raise ContainerError("command-failed", f"{command[0]} failed in the container {self.name}: {said[-2000:]}")
        return said

    @abstractmethod
    def _environment(self) -> dict[str, str]:
        """The container's variables."""

    def _command(self) -> list[str] | None:
        """What follows the image's entrypoint; None takes the image's own."""
        return None

    def _files(self) -> dict[str, str]:
        """Texts by path, put into the container before its first start."""
        return {}

    def _folders(self) -> Sequence[Path]:
        """Folders that it shares with this machine, under the same path."""
        return ()

    @abstractmethod
    def _is_ready(self) -> bool:
        """True if the server does what clients need. Bounded to a few seconds."""

    def _listens(self) -> bool:
        host, _, port = self.reached_at(self.ports[0]).rpartition(":")
        try:
            with socket.create_connection((host, int(port)), timeout=_CONNECT_S_MAX):
                return True
        except OSError:
            return False

    def _make(self) -> None:
        image = image_of(self.image)
        ports = {}
        if not self.network.start().direct:
            ours = "127.0.0.1" if engine().host() == "localhost" else ""
            ports = {f"{port}/tcp": (ours, int(self.reached_at(port).rpartition(":")[2])) for port in self.ports}
        try:
            self._container = create(
                image,
                self._command(),
                self._environment(),
                ports=ports,
                files=self._files(),
                volumes={str(folder): str(folder) for folder in self._folders()},
                shm_size=self.shm,
                **self.network.joined_as(self.address),
            )
        except docker.errors.APIError as error:
            raise ContainerError(
                "container-not-made", f"the engine did not start {self.name} of {image}: {error.explanation or error}"
            ) from error
        self._made = self._container.get_wrapped_container()

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _READY_S_MAX
        while True:
            state = self._state()
            if not state["Running"]:
                raise ContainerError(
                    "container-ended",
                    f"the container of {self.name} ended with exit code {state['ExitCode']} while it started; the end"
                    f" of its log:\n{self._log_end()}",
                )
            if self._is_ready():
                return
            if time.monotonic() > deadline:
                raise ContainerError(
                    "container-not-answering",
                    f"{self.name} does not answer at {self.reached_at(self.ports[0])} after {_READY_S_MAX:.0f} s"
                    f"{' (it is paused)' if state['Paused'] else ''}; the end of its log:\n{self._log_end()}",
                )
            time.sleep(0.1)

    def _log_end(self) -> str:
        return "\n".join(f"  {line}" for line in self.logs(_LINES_MAX).splitlines())

    def _state(self) -> dict[str, Any]:
        if self._made is None:
            return {}
        try:
            self._made.reload()
        except docker.errors.NotFound:
            raise ContainerError(
                "container-removed",
                f"somebody removed the container of {self.name}, and its data with it: make another one",
            ) from None
        state: dict[str, Any] = self._made.attrs["State"]
        return state

    def _require_running(self) -> None:
        if not self._state().get("Running"):
            raise ContainerError("container-not-running", f"the container of {self.name} does not run: start it first")

    def _call(self, what: str, **given: Any) -> None:
        try:
            getattr(self._made, what)(**given)
        except docker.errors.APIError as error:
            raise ContainerError(
                "container-call-failed", f"the engine refused to {what} {self.name}: {error.explanation or error}"
            ) from error

    def _forget_cuts(self) -> None:
        self._cuts.clear()
