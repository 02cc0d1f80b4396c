"""The processes of a local HBase: one JVM with master, region server and ZooKeeper, and its Thrift servers."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from xml.sax.saxutils import escape

from onefold.local.hbase.jars import hbase_jars
from onefold.local.hbase.probe import serves_tables
from onefold.local.hbase.regions import flush_regions, major_compact_regions, region_names
from onefold.local.java import find_java
from onefold.local.local_server import LocalServer, local_address
from onefold.local.process import ProcessRef, ServerState, kill_tree, spawn
from onefold.local.resources import HOST, choose_port
from onefold.local.server_errors import LocalServerError, never_started

if TYPE_CHECKING:
    from rich.progress import Progress

_CONNECT_S_MAX = 2.0
_JVM = (
    "-XX:+UseSerialGC",
    "-XX:+ExitOnOutOfMemoryError",
    # What HBase's own start script opens for Java 11 and newer.
    "--add-modules=jdk.unsupported",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.lang.reflect=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/java.util.concurrent=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.misc=ALL-UNNAMED",
)
_SERVER = {
    "hbase.cluster.distributed": "false",
    "hbase.unsafe.stream.capability.enforce": "false",  # Hadoop's local file system doesn't say what it can do
    "hbase.wal.provider": "filesystem",
    "hbase.master.ipc.address": HOST,
    "hbase.regionserver.ipc.address": HOST,
    "hbase.master.hostname": HOST,
    "hbase.regionserver.hostname": HOST,
    "hbase.master.info.port": "-1",
    "hbase.regionserver.info.port": "-1",
    # A region server that ZooKeeper takes for dead ends itself, and here nobody starts another: a process that was
    # paused, or a machine that is overloaded, must not look dead.
    "zookeeper.session.timeout.localHBaseCluster": "60000",
    "hbase.zookeeper.property.tickTime": "3000",
    # One region server is all there will be: don't wait for more.
    "hbase.master.wait.on.regionservers.mintostart": "1",
    "hbase.master.wait.on.regionservers.maxtostart": "1",
    "hbase.master.wait.on.regionservers.interval": "100",
    "hbase.regionserver.msginterval": "300",
    "hbase.regionserver.handler.count": "6",
    "hbase.hregion.memstore.mslab.enabled": "false",  # 2 MB of the small heap for each region that is written to
}
_THRIFT = {
    "hbase.thrift.info.port": "-1",
    # A Thrift server that goes on with a request after its client has given up can apply it over newer ones.
    "hbase.client.operation.timeout": "8000",
    "hbase.client.meta.operation.timeout": "8000",
    "hbase.client.retries.number": "4",
    "hbase.rpc.timeout": "4000",
}
# To the console, which is the log file: what the JVM itself says when it dies then stands in the same place.
_LOG4J = """log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %-5p [%t] %c{1}: %m%n
log4j.logger.org.apache.hadoop.metrics2=WARN
log4j.logger.org.apache.hadoop.hbase.metrics=WARN
"""


class _JavaServer(LocalServer):
    """One JVM of HBase's. `home` is on its class path: its settings are read from there."""

    def _prepare(self, progress: Progress | None) -> None:
        self._java = find_java()
        self._jars = hbase_jars(self._java, progress)
        (self.home / "log4j.properties").write_text(_LOG4J)

    def _spawn(self, heap_mb: int, main: str, *arguments: str, settings: Mapping[str, str]) -> ProcessRef:
        (self.home / "hbase-site.xml").write_text(_as_xml({**settings, **self._settings}))
        classpath = f"{self.home}:{self._jars}/*"
        command = [
            str(self._java.path),
            f"-Xmx{heap_mb}m",
            *_JVM,
            "-cp",
            classpath,
            f"org.apache.hadoop.hbase.{main}",
            *arguments,
        ]
        return spawn(command, log=self.log_path, cwd=self.home)

    def _end(self, process: ProcessRef) -> None:
        """What was acknowledged is in the write-ahead log on disk, and an orderly end can take HBase 20 s."""
        kill_tree(process)

    def _address(self, port: int) -> str:
        return local_address(port)


class HBaseProcess(_JavaServer):
    """Master, region server and ZooKeeper in one JVM. Its port is ZooKeeper's; clients come through Thrift."""

    name = "hbase"

    def __init__(
        self,
        directory: Path | str,
        port: int | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        heap_mb: int = 192,
    ) -> None:
        super().__init__(directory, port, settings=settings)
        self._heap_mb = heap_mb

    def flush(self, table: str) -> None:
        """Writes what HBase has of the table in memory into files. Back when it is done."""
        flush_regions(self._region_server(), self._regions(table))

    def major_compact(self, table: str) -> None:
        """Makes one file of each region's, without deleted and outdated cells. Back when it is done."""
        major_compact_regions(self._region_server(), self._regions(table))

    def cluster_id(self) -> str | None:
        """What HBase called itself when it made its data folder; None as long as it has not."""
        try:
            written = (self.home / "data" / "hbase.id").read_bytes()
        except FileNotFoundError:
            return None
        found = re.search(rb"[0-9a-f]{8}-[0-9a-f-]{27}", written)
        return found[0].decode() if found else None

    def _launch(self, port: int, before: ServerState | None) -> ServerState:
        # The same ports again: what ZooKeeper still keeps of a master or a region server that was killed is then taken
        # for this one's earlier life at once, and not waited for until its session ends.
        master = choose_port("HBase's master", None, before.second_port if before else None)
        region_server = choose_port("HBase's region server", None, before.third_port if before else None)
        settings = {
            **_SERVER,
            **_quorum(port),
            "hbase.master.port": str(master),
            "hbase.regionserver.port": str(region_server),
            "hbase.rootdir": f"file:{self.home / 'data'}",
            "hbase.tmp.dir": str(self.home / "tmp"),
            "hbase.zookeeper.property.dataDir": str(self.home / "zookeeper"),
        }
        process = self._spawn(self._heap_mb, "master.HMaster", "start", settings=settings)
        return ServerState(
            port=port, log=str(self.log_path), process=process, second_port=master, third_port=region_server
        )

    def _is_ready(self, port: int) -> bool:
        """ZooKeeper answers. Whether tables do, only a client can tell: the Thrift server's probe."""
        return _listens(port)

    def _region_server(self) -> tuple[str, int]:
        state = ServerState.load(self._state_path)
        if state is None or state.third_port is None:
            raise never_started(self.name, self.directory)
        return HOST, state.third_port

    def _regions(self, table: str) -> list[bytes]:
        namespace, _, name = table.rpartition(":")
        folder = self.home / "data" / "data" / (namespace or "default") / name
        if not folder.is_dir():
            raise LocalServerError("local-table-missing", f"there is no table {table} in {self.directory}")
        return region_names(folder)


class ThriftProcess(_JavaServer):
    """A Thrift server of the HBase that was started in the same directory. It is ready when tables can be made."""

    def __init__(
        self,
        directory: Path | str,
        port: int | None = None,
        *,
        version: Literal[1, 2] = 2,
        name: str | None = None,
        settings: Mapping[str, str] | None = None,
        heap_mb: int = 96,
    ) -> None:
        """`name` tells several of one directory apart."""
        self.name = name or f"hbase-thrift{version}"
        super().__init__(directory, port, settings=settings)
        self._version, self._heap_mb = version, heap_mb

    def _launch(self, port: int, before: ServerState | None) -> ServerState:
        del before
        settings = {**_THRIFT, **_quorum(HBaseProcess(self.directory).port)}
        main = "thrift2.ThriftServer" if self._version == 2 else "thrift.ThriftServer"
        process = self._spawn(self._heap_mb, main, "--bind", HOST, "--port", str(port), "start", settings=settings)
        return ServerState(port=port, log=str(self.log_path), process=process)

    def _is_ready(self, port: int) -> bool:
        if self._version == 1:  # started beside a Thrift2 server, which has shown that tables can be reached
            return _listens(port)
        cluster_id = HBaseProcess(self.directory).cluster_id()
        return cluster_id is not None and serves_tables(local_address(port), self._settings, cluster_id)


def _listens(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=_CONNECT_S_MAX):
            return True
    except OSError:
        return False


def _quorum(zookeeper_port: int) -> dict[str, str]:
    return {"hbase.zookeeper.quorum": HOST, "hbase.zookeeper.property.clientPort": str(zookeeper_port)}


def _as_xml(settings: Mapping[str, str]) -> str:
    properties = (
        f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>"
        for name, value in settings.items()
    )
    return "<configuration>\n" + "\n".join(properties) + "\n</configuration>\n"
