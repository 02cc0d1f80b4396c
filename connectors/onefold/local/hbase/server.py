"""HBase, standalone, with the Thrift servers that Python speaks to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from onefold.local.hbase.parts import HBaseProcess, ThriftProcess
from onefold.local.local_server import LocalServer, ServerStatus, local_address
from onefold.local.owned import Owned

if TYPE_CHECKING:
    from rich.progress import Progress


class HBaseServer(Owned):
    """An HBase of one process and its Thrift servers on 127.0.0.1. Data are kept on the local disk.

    Several objects, in several processes, may speak of the same server. `hbase`, `thrift` and `thrift1` are its
    processes: each can be killed, paused and resumed alone, and `start` brings back whichever has died.
    """

    name = "hbase"
    access = "anybody on this machine may read and write here: Thrift, ZooKeeper and HBase ask for no password"

    def __init__(
        self,
        directory: Path | str,
        port: int | None = None,
        *,
        thrift_servers: int = 1,
        thrift1: bool = False,
        settings: Mapping[str, str] | None = None,
        thrift_settings: Mapping[str, str] | None = None,
        heap_mb: int = 192,
    ) -> None:
        """`port` is that of (the first) Thrift2 server: this one or an error; None takes the one of the last start, or
        a free one.

        `thrift1` starts a server of the older interface too, which happybase speaks. `settings` are added to
        hbase-site.xml of HBase, `thrift_settings` to that of each Thrift server. `heap_mb` is HBase's; a Thrift server
        has half of it.
        """
        self.directory = Path(directory).absolute()
        self.hbase = HBaseProcess(directory, settings=settings, heap_mb=heap_mb)
        self.thrifts = (
            ThriftProcess(directory, port, settings=thrift_settings, heap_mb=heap_mb // 2),
            *(
                ThriftProcess(directory, name=f"hbase-thrift2-{n}", settings=thrift_settings, heap_mb=heap_mb // 2)
                for n in range(2, thrift_servers + 1)
            ),
        )
        self.thrift = self.thrifts[0]
        self.thrift1 = ThriftProcess(directory, version=1, settings=thrift_settings, heap_mb=heap_mb // 2)
        self._asked_thrift1 = thrift1

    @property
    def port(self) -> int:
        """Of the first Thrift2 server, at its last start. Raises LocalServerError if there was none."""
        return self.thrift.port

    @property
    def servers(self) -> str:
        """What a client of Thrift2 connects to, `host:port,host:port`. Raises LocalServerError before the first
        start."""
        return ",".join(local_address(server.port) for server in self.thrifts)

    def start(self, progress: Progress | None = None) -> ServerStatus:
        """Starts what doesn't run, and waits until tables can be made and read. Data of earlier runs stay."""
        before = self.hbase.status()
        self._started_it |= not before.running
        found = self.hbase.start(progress)
        try:
            if before.port not in (None, found.port):  # those that live on look for it where it was
                for server in self._any_thrifts():
                    server.stop()
            for server in (*self.thrifts, self.thrift1) if self._asked_thrift1 else self.thrifts:
                server.start(progress)
        except BaseException:
            if self._started_it:
                self.kill()  # nobody would know of it
            raise
        detail = found.detail + self._thrift1_beside()
        return ServerStatus(self.name, True, found.pid, self.port, found.log, detail, self.servers)

    def another_thrift(self, name: str, settings: Mapping[str, str]) -> ThriftProcess:
        """One more Thrift2 server of this HBase, not started, with settings of its own."""
        return ThriftProcess(self.directory, name=name, settings=settings)

    def stop(self) -> bool:
        """Ends all of it; False if nothing ran. Ends no process but those that were started here."""
        stopped = [server.stop() for server in (*self._any_thrifts(), self.hbase)]
        return any(stopped)

    def kill(self) -> None:
        """SIGKILL for all of it, as a crash of the machine would: for crash tests. `start` brings it back."""
        for server in (self.hbase, *self._any_thrifts()):
            server.kill()

    def restart(self) -> ServerStatus:
        """`stop` and `start`."""
        self.stop()
        return self.start()

    def pause(self) -> None:
        """Holds all its processes that run still, until `resume`."""
        for server in self._running():
            server.pause()

    def resume(self) -> None:
        for server in self._running():
            server.resume()

    def flush(self, table: str) -> None:
        """Writes what HBase has of the table in memory into files. Back when it is done."""
        self.hbase.flush(table)

    def major_compact(self, table: str) -> None:
        """Makes one file of each region's, without deleted and outdated cells. Back when it is done."""
        self.hbase.major_compact(table)

    def status(self) -> ServerStatus:
        found, thrift = self.hbase.status(), self.thrift.status()
        detail = found.detail
        if found.running and not thrift.running:
            detail = f"{found.detail}, but its Thrift server does not: {thrift.detail}"
        running = found.running and thrift.running
        detail += self._thrift1_beside()
        return ServerStatus(self.name, running, found.pid, thrift.port, found.log, detail, thrift.address)

    def _thrift1_beside(self) -> str:
        address = self.thrift1.status().address
        return f"; Thrift1 at {address}" if address else ""

    def _running(self) -> list[LocalServer]:
        return [server for server in (self.hbase, *self._any_thrifts()) if server.status().running]

    def _any_thrifts(self) -> list[ThriftProcess]:
        """All that were ever started here, also by an object that was told of more of them."""
        return [ThriftProcess(self.directory, name=path.stem) for path in self.directory.glob("hbase-*.json")]
