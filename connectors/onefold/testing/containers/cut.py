"""Cuts of the network between a container and others: their packets are dropped, and nobody is told.

A short-lived container that shares the network of the one that is cut sets the rules, so the engine's API is all that
is needed; the cut container needs no privilege.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Protocol, Self

import docker.errors

from onefold.testing.containers.engine import engine, image_of
from onefold.testing.containers.owner import labels
from onefold.testing.errors import ContainerError

__all__ = ["Cut", "Direction", "Peer", "addresses_of"]

Direction = Literal["both", "incoming", "outgoing"]


class _Addressed(Protocol):
    @property
    def addresses(self) -> Iterable[str]: ...


Peer = str | _Addressed | None  # an address, a server (or several in one), or everybody


def addresses_of(peer: Peer) -> list[str]:
    """None stands for everybody: then there is no address."""
    if peer is None:
        return []
    return [peer] if isinstance(peer, str) else list(peer.addresses)


class Cut:
    """A cut in force, until `mend` or the end of its `with`. A container that starts anew has left its cuts behind."""

    def __init__(self, containers: Iterable[Any], peer: Peer, direction: Direction) -> None:
        self._containers, self._rules = list(containers), _rules(peer, direction)
        for container in self._containers:
            _run(container, [f"iptables -w -I {rule}" for rule in self._rules])

    def mend(self) -> None:
        """Lets packets through again. Nothing the second time."""
        containers, self._containers = self._containers, []
        for container in containers:
            with suppress(docker.errors.NotFound):  # it was removed, and its network with it
                container.reload()
                if container.attrs["State"]["Running"]:
                    _run(container, [f"iptables -w -D {rule} || true" for rule in self._rules])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.mend()


def _rules(peer: Peer, direction: Direction) -> list[str]:
    """What a container says to itself passes in any case."""
    found = []
    addresses = addresses_of(peer)
    for way, (chain, interface, side) in {
        "incoming": ("INPUT", "-i", "-s"),
        "outgoing": ("OUTPUT", "-o", "-d"),
    }.items():
        if direction in (way, "both"):
            found += [f"{chain} ! {interface} lo {side} {address} -j DROP" for address in addresses]
            found += [] if peer is not None else [f"{chain} ! {interface} lo -j DROP"]
    return found


def _run(container: Any, commands: list[str]) -> None:
    try:
        engine().client.containers.run(
            image_of("netcut"),
            ["sh", "-ec", "\n".join(commands)],
            network_mode=f"container:{container.id}",
            cap_add=["NET_ADMIN"],
            labels=labels(),
            user="root",
            remove=True,
        )
    except docker.errors.DockerException as error:
        said = getattr(error, "stderr", None) or error
        raise ContainerError(
            "cut-failed", f"the network of {container.name} was not changed: {said!s}. Does the container run?"
        ) from error
