"""Servers of several containers, that are started, struck and removed as one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from onefold.local.local_server import ServerStatus
from onefold.testing.containers.cut import Cut, Direction, Peer
from onefold.testing.containers.network import Network
from onefold.testing.containers.server_container import ServerContainer


class Cuts:
    """Cuts of several containers, that end together."""

    def __init__(self, cuts: Sequence[Cut]) -> None:
        self._cuts = cuts

    def mend(self) -> None:
        for cut in self._cuts:
            cut.mend()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.mend()


class ContainerGroup:
    """What is done to it is done to every container of it."""

    def __init__(self, network: Network | None) -> None:
        self.network = network or Network()
        self._owns_network = network is None

    @property
    @abstractmethod
    def members(self) -> Sequence[ServerContainer]:
        """Its containers, in the order of their start."""

    @property
    def addresses(self) -> list[str]:
        return [member.address for member in self.members]

    @abstractmethod
    def start(self, progress: object = None) -> ServerStatus | None:
        """Starts what does not run, and waits until it answers."""

    def stop(self) -> bool:
        """Ends all of it in order, the last started first; False if nothing ran. `start` brings it back."""
        stopped = [member.stop() for member in reversed(self.members)]
        return any(stopped)

    def kill(self) -> None:
        """SIGKILL for all of it, as a crash of the machine would: for crash tests. `start` brings it back."""
        for member in self.members:
            member.kill()

    def restart(self) -> ServerStatus | None:
        """`stop` and `start`."""
        self.stop()
        return self.start()

    def pause(self) -> None:
        """Holds all its processes that run still, until `resume`."""
        for member in self._running():
            member.pause()

    def resume(self) -> None:
        for member in self._running():
            member.resume()

    def cut(self, peer: Peer = None, direction: Direction = "both") -> Cuts:
        """Drops the packets between `peer` and each container of it that runs; see ServerContainer.cut. None cuts its
        containers from each other, too."""
        return Cuts([member.cut(peer, direction) for member in self._running()])

    def mend(self) -> None:
        """Ends all cuts of its containers."""
        for member in self.members:
            member.mend()

    def remove(self) -> None:
        """Removes its containers with their data, and the network if it was made for it alone."""
        for member in reversed(self.members):
            member.remove()
        if self._owns_network:
            self.network.remove()

    def _running(self) -> list[ServerContainer]:
        return [member for member in self.members if member.status().running]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()
