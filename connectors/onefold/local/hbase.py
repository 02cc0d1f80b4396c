"""HBase, standalone, with the Thrift servers that Python speaks to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from onefold.local.hbase_parts import HBaseProcess, ThriftProcess
from onefold.local.server import ServerStatus, local_address

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["HBaseServer"]


class HBaseServer:
    """An HBase of one process and its Thrift servers on 127.0.0.1. Data are kept on the local disk.

    Several objects, in several processes, may speak of the same server. `hbase`, `thrift` and `thrift1` are its
    processes: each can be killed, paused and resumed alone, and `start` brings back whichever has died.
    """

    name = "hbase"

    def __init__(
        self,
        directory: Path | str,
        port: int | None = None,
        *,
        thrift1: bool = False,
        settings: Mapping[str, str] | None = None,
        thrift_settings: Mapping[str, str] | None = None,
    ) -> None:
        """`port` is that of Thrift2: this one or an error; None takes the one of the last start, or a free one.

        `thrift1` starts a server of the older interface too, which happybase speaks. `settings` and `thrift_settings`
        are added to hbase-site.xml of HBase, and of both Thrift servers.
        """
        self.directory = Path(directory).absolute()
        self.hbase = HBaseProcess(directory, settings=settings)
        self.thrift = ThriftProcess(directory, port, settings=thrift_settings)
        self.thrift1 = ThriftProcess(directory, version=1, settings=thrift_settings)
        self._asked_thrift1 = thrift1
        self._started_it = False

    @property
    def port(self) -> int:
        """Thrift2's port of the last start. Raises LocalServerError if there was none."""
        return self.thrift.port

    @property
    def servers(self) -> str:
        """What a client of Thrift2 connects to, `host:port`. Raises LocalServerError if there was no start."""
        return local_address(self.thrift.port)

    def start(self, progress: Progress | None = None) -> ServerStatus:
        """Starts what doesn't run, and waits until tables can be made and read. Data of earlier runs stay."""
        self._started_it |= not self.hbase.status().running
        found = self.hbase.start(progress)
        try:
            thrift = self.thrift.start(progress)
            if self._asked_thrift1:
                self.thrift1.start(progress)
        except BaseException:
            if self._started_it:
                self.kill()  # nobody would know of it
            raise
        return ServerStatus(self.name, True, found.pid, thrift.port, found.log, found.detail, thrift.address)

    def stop(self) -> bool:
        """Ends all of it; False if nothing ran. Ends no process but those that `start` started."""
        stopped = [server.stop() for server in (self.thrift1, self.thrift, self.hbase)]
        return any(stopped)

    def kill(self) -> None:
        """SIGKILL for all of it, as a crash of the machine would: for crash tests. `start` brings it back."""
        for server in (self.hbase, self.thrift, self.thrift1):
            server.kill()

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
        return ServerStatus(self.name, running, found.pid, thrift.port, found.log, detail, thrift.address)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._started_it:
            self.stop()
