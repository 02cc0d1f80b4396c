"""HBase in containers: one of master, region server and ZooKeeper, and one for each Thrift server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from onefold.local.hbase.probe import regions_of, serves_tables
from onefold.local.hbase.regions import flush_regions, major_compact_regions
from onefold.local.local_server import ServerStatus
from onefold.testing.containers.group import ContainerGroup
from onefold.testing.containers.network import Network
from onefold.testing.containers.server_container import ServerContainer

_ZOOKEEPER, _REGION_SERVER, _THRIFT = 2181, 16020, 9090


class _HBase(ServerContainer):
    """Master, region server and ZooKeeper in one JVM. Clients come through Thrift."""

    name = "hbase"
    image = "hbase"
    ports = (_ZOOKEEPER, _REGION_SERVER)

    def __init__(self, network: Network, settings: Mapping[str, str] | None, heap_mb: int) -> None:
        super().__init__(network, settings=settings)
        self._heap_mb = heap_mb

    def _environment(self) -> dict[str, str]:
        return {"HBASE_HOST": self.address, "HBASE_HEAP": f"{self._heap_mb}m", "HBASE_SETTINGS": _lines(self.settings)}

    def _command(self) -> list[str]:
        return ["hbase"]

    def _is_ready(self) -> bool:
        """ZooKeeper answers. Whether tables do, only a client can tell: the Thrift server's probe."""
        return self._listens()


class _Thrift(ServerContainer):
    """A Thrift server of an HBase. It is ready when tables can be made."""

    image = "hbase"
    ports = (_THRIFT,)

    def __init__(
        self, hbase: _HBase, name: str, version: Literal[1, 2], settings: Mapping[str, str] | None, heap_mb: int
    ) -> None:
        super().__init__(hbase.network, settings=settings)
        self.name, self._hbase, self._version, self._heap_mb = name, hbase, version, heap_mb

    def _environment(self) -> dict[str, str]:
        zookeeper = f"{self._hbase.address}:{_ZOOKEEPER}"
        return {
            "HBASE_ZOOKEEPER": zookeeper,
            "HBASE_HEAP": f"{self._heap_mb}m",
            "HBASE_SETTINGS": _lines(self.settings),
        }

    def _command(self) -> list[str]:
        return ["thrift" if self._version == 2 else "thrift1"]

    def _is_ready(self) -> bool:
        if self._version == 1:  # started beside a Thrift2 server, which has shown that tables can be reached
            return self._listens()
        return self._listens() and serves_tables(self.reached_at(_THRIFT), self.settings, None)


class HBaseContainer(ContainerGroup):
    """An HBase and its Thrift servers, each in a container of its own.

    `hbase`, `thrift` (the first of `thrifts`) and `thrift1` can be killed, paused and cut alone, and `start` brings
    back whichever has died.
    """

    name = "hbase"

    def __init__(
        self,
        network: Network | None = None,
        *,
        thrift_servers: int = 1,
        thrift1: bool = False,
        settings: Mapping[str, str] | None = None,
        thrift_settings: Mapping[str, str] | None = None,
        heap_mb: int = 192,
    ) -> None:
        """`thrift1` starts a server of the older interface too, which happybase speaks. `settings` are added to
        hbase-site.xml of HBase, `thrift_settings` to that of each Thrift server. `heap_mb` is HBase's; a Thrift server
        has half of it.
        """
        super().__init__(network)
        self.hbase = _HBase(self.network, settings, heap_mb)
        names = ["hbase-thrift2", *(f"hbase-thrift2-{n}" for n in range(2, thrift_servers + 1))]
        self.thrifts = tuple(_Thrift(self.hbase, name, 2, thrift_settings, heap_mb // 2) for name in names)
        self.thrift = self.thrifts[0]
        self.thrift1 = _Thrift(self.hbase, "hbase-thrift1", 1, thrift_settings, heap_mb // 2)
        self._asked_thrift1, self._heap_mb = thrift1, heap_mb

    @property
    def members(self) -> Sequence[ServerContainer]:
        thrift1 = self._asked_thrift1 or self.thrift1.status().port is not None
        return (self.hbase, *self.thrifts, self.thrift1) if thrift1 else (self.hbase, *self.thrifts)

    @property
    def servers(self) -> str:
        """What a client of Thrift2 connects to, `host:port,host:port`."""
        return ",".join(thrift.reached_at(_THRIFT) for thrift in self.thrifts)

    @property
    def port(self) -> int:
        """Of the first Thrift2 server."""
        return self.thrift.port

    @property
    def pid(self) -> int | None:
        return self.hbase.pid

    def start(self, progress: object = None) -> ServerStatus:
        """Starts what does not run, and waits until tables can be made and read."""
        del progress
        for member in self.members:
            member.start()
        return self.status()

    def another_thrift(self, name: str, settings: Mapping[str, str]) -> ServerContainer:
        """One more Thrift2 server of this HBase, not started, with settings of its own."""
        return _Thrift(self.hbase, name, 2, settings, self._heap_mb // 2)

    def flush(self, table: str) -> None:
        """Writes what HBase has of the table in memory into files. Back when it is done."""
        flush_regions(self._region_server(), self._regions(table))

    def major_compact(self, table: str) -> None:
        """Makes one file of each region's, without deleted and outdated cells. Back when it is done."""
        major_compact_regions(self._region_server(), self._regions(table))

    def status(self) -> ServerStatus:
        found, thrift = self.hbase.status(), self.thrift.status()
        detail = found.detail
        if found.running and not thrift.running:
            detail = f"{found.detail}, but its Thrift server does not: {thrift.detail}"
        running = found.running and thrift.running
        return ServerStatus(self.name, running, found.pid, thrift.port, found.log, detail, thrift.address)

    def _regions(self, table: str) -> list[bytes]:
        return regions_of(self.thrift.reached_at(_THRIFT), self.thrift.settings, table)

    def _region_server(self) -> tuple[str, int]:
        host, _, port = self.hbase.reached_at(_REGION_SERVER).rpartition(":")
        return host, int(port)


def _lines(settings: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in settings.items())
