"""Cuts of the network between a container and others: their packets are dropped, and nobody is told.

A short-lived container that shares the network of the one that is cut sets the rules, so the engine's API is all that
is needed; the cut container needs no privilege.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Protocol, Self, get_args

import docker.errors

from onefold.core.errors import ConfigError
from onefold.testing.container_errors import ContainerError
from onefold.testing.containers.engine import engine, image_of
from onefold.testing.containers.owner import labels

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

    def __init__(self, container: Any, name: str, peer: Peer, direction: Direction) -> None:
        self._container, self._name, self._rules = container, name, _rules(peer, direction)
        self._is_mended = False
        self._run([f"iptables -w -I {rule}" for rule in self._rules])

    def mend(self) -> None:
        """Lets packets through again. Nothing the second time."""
        if self._is_mended:
            return
        with suppress(docker.errors.NotFound):  # it was removed, and its network with it
            self._container.reload()
            if self._container.attrs["State"]["Running"]:
                self._run([f"iptables -w -D {rule} || true" for rule in self._rules])
        self._is_mended = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.mend()

    def _run(self, commands: list[str]) -> None:
        try:
            engine().client.containers.run(
                image_of("netcut"),
                ["sh", "-ec", "\n".join(commands)],
                network_mode=f"container:{self._container.id}",
                cap_add=["NET_ADMIN"],
                labels=labels(),
                user="root",
                remove=True,
            )
        except docker.errors.DockerException as error:
            said = error.stderr.decode(errors="replace") if isinstance(error, docker.errors.ContainerError) else error
            raise ContainerError(
                "cut-failed",
                f"the network of {self._name} was not changed: {str(said).strip()}. Does its container run?",
            ) from error


def _rules(peer: Peer, direction: Direction) -> list[str]:
    """What a container says to itself passes in any case."""
    if direction not in get_args(Direction):
        raise ConfigError(
            "cut-direction",
            f"a network is not cut in the direction {direction!r}: name {', '.join(get_args(Direction))}",
        )
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
