"""A network of containers, in which each has an address of its own that it keeps."""

from __future__ import annotations

import ipaddress
import random
import socket
import struct
import uuid
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import docker.errors
import psutil
from docker.types import EndpointConfig, IPAMConfig, IPAMPool
from testcontainers.core.config import ConnectionMode, testcontainers_config

from onefold.testing.container_errors import ContainerError
from onefold.testing.containers.engine import engine
from onefold.testing.containers.owner import labels

_RANGE = ipaddress.IPv4Network("10.192.0.0/10")  # of addresses that nobody owns; little used by others
_TRIES_MAX = 20
_FIRST = 10  # the first addresses of a network are the engine's


class Network:
    """A bridge with a subnet of its own. The servers of one suite share one; what they are cut from are its members.

    `direct`: whether this process reaches containers by their own addresses, as it does on Linux with an engine of the
    same machine. Elsewhere it reaches published ports of the engine's host (or everywhere, if testcontainers is told so
    by TESTCONTAINERS_CONNECTION_MODE=docker_host).
    """

    def __init__(self, subnet: str | None = None) -> None:
        """`subnet`: this one (`10.201.7.0/24`) or an error; None takes a free one."""
        self._asked = ipaddress.IPv4Network(subnet) if subnet else None
        self._taken = 0
        self._network: Any = None
        self.name = f"onefold-{uuid.uuid4().hex[:12]}"

    def start(self) -> Self:
        """Makes the network, unless it is there."""
        if self._network is not None:
            return self
        for subnet in [self._asked] if self._asked else _free_subnets():
            self.subnet = subnet
            self.gateway = str(subnet.network_address + 1)
            if self._made(subnet):
                self.direct = self._reaches()
                return self
        raise ContainerError(
            "subnet-taken",
            f"the engine has no room for a network in {self._asked or _RANGE}: another network uses these addresses."
            " Remove networks that nobody needs (`docker network ls`), or name a subnet: Network('10.201.7.0/24')",
        )

    def remove(self) -> None:
        """Its containers have to be removed before."""
        if self._network is not None:
            with suppress(docker.errors.NotFound):  # somebody has removed it
                self._network.remove()
            self._network = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def next_address(self) -> str:
        """An address that no container has had."""
        self.start()
        if self._taken + _FIRST >= self.subnet.num_addresses - 1:
            raise ContainerError(
                "subnet-full", f"every address of {self.subnet} is taken: make another Network for more containers"
            )
        self._taken += 1
        return str(self.subnet.network_address + _FIRST + self._taken - 1)

    def joined_as(self, address: str) -> dict[str, Any]:
        """What docker's client takes to put a container here."""
        self.start()
        version = engine().client.api._version  # which decides what an endpoint may say
        return {"network": self.name, "networking_config": {self.name: EndpointConfig(version, ipv4_address=address)}}

    def _made(self, subnet: ipaddress.IPv4Network) -> bool:
        pool = IPAMPool(subnet=str(subnet), gateway=self.gateway)
        given = {"driver": "bridge", "ipam": IPAMConfig(pool_configs=[pool]), "labels": labels()}
        try:
            self._network = engine().client_networks_create(self.name, given)
        except docker.errors.APIError as error:
            if "overlap" in str(error).lower() or "conflicts" in str(error).lower():
                return False
            raise ContainerError(
                "network-not-made", f"the engine made no network of {subnet}: {error.explanation or error}"
            ) from error
        return True

    def _reaches(self) -> bool:
        """The network's gateway is an address of this very machine, not of an engine elsewhere."""
        if testcontainers_config.connection_mode_override is ConnectionMode.docker_host:
            return False
        ours = (address.address for addresses in psutil.net_if_addrs().values() for address in addresses)
        return self.gateway in ours


def _free_subnets() -> list[ipaddress.IPv4Network]:
    """Some that no network of this machine seems to use. Another process may be about to take the same."""
    taken = [*_ways(), *_interfaces()]
    subnets = random.sample(range(2 ** (24 - _RANGE.prefixlen)), 16 * _TRIES_MAX)
    found = (ipaddress.IPv4Network((int(_RANGE.network_address) + (n << 8), 24)) for n in subnets)
    return [subnet for subnet in found if not any(subnet.overlaps(other) for other in taken)][:_TRIES_MAX]


def _interfaces() -> list[ipaddress.IPv4Network]:
    found = []
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family == socket.AF_INET and address.netmask:
                found.append(ipaddress.IPv4Network(f"{address.address}/{address.netmask}", strict=False))
    return found


def _ways() -> list[ipaddress.IPv4Network]:
    """Where this machine sends other things than to the internet, a VPN for one."""
    table = Path("/proc/net/route")
    if not table.exists():
        return []
    found = []
    for line in table.read_text().splitlines()[1:]:
        _, destination, *_rest = line.split()
        mask = line.split()[7]
        network, netmask = (socket.inet_ntoa(struct.pack("<L", int(field, 16))) for field in (destination, mask))
        if netmask != "0.0.0.0":
            found.append(ipaddress.IPv4Network(f"{network}/{netmask}"))
    return found
