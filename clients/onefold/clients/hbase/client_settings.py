"""Which Thrift servers, and how to talk to them."""

from __future__ import annotations

from dataclasses import dataclass

from onefold.clients.exposure import is_here
from onefold.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class HBaseSettings:
    """`servers` are HBase Thrift2 servers, "host:port,host:port", of one HBase: any of them may be asked.

    transport        as the servers were started: "buffered", or "framed" (hbase.regionserver.thrift.framed)
    protocol         "binary", or "compact" (hbase.regionserver.thrift.compact), which costs the client more
    timeout_s        two bounds. A request waits this long for the next byte of its answer: set it above the servers'
                     hbase.client.operation.timeout. A task or a source repeats a request this long while servers are
                     down, busy or silent; a pipeline's driver repeats its own for the pipeline's patience_s
    connections      of each process to each server, at most; where servers are away, the others have theirs too. Each
                     takes one of the server's worker threads
    frame_bytes_max  the longest request. Framed servers close the connection on a longer one than their
                     hbase.regionserver.thrift.framed.max_frame_size_in_mb (2)
    info_port        of the Thrift servers' web pages (hbase.thrift.info.port), where doctor reads their limits
    kerberos_service the first part of the Thrift servers' principals, "hbase" as a rule, where they have
                     hbase.thrift.security.qop; each server by the name that its principal has, in `servers`
    """

    servers: str
    transport: str = "buffered"
    protocol: str = "binary"
    timeout_s: float = 30.0
    connections: int = 8
    frame_bytes_max: int = 2 << 20
    info_port: int = 9095
    kerberos_service: str | None = None

    def __post_init__(self) -> None:
        if self.transport not in ("buffered", "framed"):
            raise ConfigError(
                "option-value",
                f"transport is 'buffered' or 'framed', as the Thrift server has it: not {self.transport!r}",
            )
        if self.protocol not in ("binary", "compact"):
            raise ConfigError(
                "option-value", f"protocol is 'binary' or 'compact', as the Thrift server has it: not {self.protocol!r}"
            )
        if self.timeout_s <= 0:
            raise ConfigError("option-value", f"timeout_s is a number of seconds above 0: not {self.timeout_s}")
        if self.connections < 1:
            raise ConfigError("option-value", f"connections is a number from 1 on: not {self.connections}")
        if self.frame_bytes_max < 64 << 10:
            raise ConfigError(
                "option-value", f"frame_bytes_max is a number of bytes from 65536 on: not {self.frame_bytes_max}"
            )
        if self.kerberos_service is not None and self.transport != "buffered":
            raise ConfigError(
                "options-conflict", "kerberos_service goes with transport='buffered': SASL has frames of its own"
            )
        self.addresses()

    def exposure(self) -> str:
        """Why somebody on the network could read or change what connections carry; empty on this machine alone."""
        if all(is_here(address.host) for address in self.addresses()):
            return ""
        return (
            "connections to Thrift servers have no TLS here, and somebody on the network can read and change what they"
            " carry. Put a tunnel (stunnel, a sidecar) between, and name its address on this machine"
        )

    def addresses(self) -> tuple[Address, ...]:
        found = []
        for server in self.servers.split(","):
            host, _, port = server.strip().rpartition(":")
            if not host or not port.isdigit():
                raise ConfigError(
                    "option-value", f"servers names {server.strip()!r}, and each is host:port, as in 'thrift1:9090'"
                )
            found.append(Address(host.strip("[]"), int(port)))
        return tuple(dict.fromkeys(found))
