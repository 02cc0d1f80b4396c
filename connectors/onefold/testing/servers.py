"""Servers for tests, of the kind that ONEFOLD_SERVERS names: of this machine, in containers, or somebody else's.

What a test may do with one is the same for all kinds: `start`, `stop`, `restart`, `kill`, `pause`, `resume`, `status`,
and `bootstrap_servers` of Kafka, `url` and `url_of` of databases, `servers` of HBase. Only containers have `cut`, since
processes of one machine share its network. A test that strikes somebody else's server is skipped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from onefold.core.errors import ConfigError, OnefoldError
from onefold.core.extras import naming_extras

if TYPE_CHECKING:
    from onefold.local import HBaseServer, KafkaServer, MariaDbServer, PostgresServer, SparkCluster
    from onefold.local.local_server import ServerStatus
    from onefold.testing.containers.hbase import HBaseContainer
    from onefold.testing.containers.kafka import KafkaContainer
    from onefold.testing.containers.network import Network
    from onefold.testing.containers.postgres import PostgresContainer
    from onefold.testing.containers.spark import SparkContainers


class ServerKind(StrEnum):
    """Where the servers of a test run come from."""

    LOCAL = "local"
    CONTAINERS = "containers"
    EXTERNAL = "external"


def server_kind() -> ServerKind:
    """What ONEFOLD_SERVERS says; `local` if it says nothing. Raises ConfigError for another word."""
    word = os.environ.get("ONEFOLD_SERVERS") or ServerKind.LOCAL
    try:
        return ServerKind(word)
    except ValueError:
        raise ConfigError(
            "server-kind-unknown",
            f"ONEFOLD_SERVERS={word} is no kind of servers: set it to {', '.join(ServerKind)}, or leave it away",
        ) from None


class ExternalServer:
    """A server that somebody else runs, at the address that a variable names: ONEFOLD_KAFKA (bootstrap servers),
    ONEFOLD_POSTGRES and ONEFOLD_MARIADB (URLs), ONEFOLD_HBASE (Thrift2 servers), ONEFOLD_SPARK (spark://...)."""

    def __init__(self, name: str) -> None:
        """Skips the test where the variable is not set."""
        variable = f"ONEFOLD_{name.upper()}"
        if not (address := os.environ.get(variable)):
            _skip(f"ONEFOLD_SERVERS=external, and {variable} names no server")
        self.name = name
        self.url = self.bootstrap_servers = self.servers = address
        self.environment: dict[str, str] = {}

    def url_of(self, database: str) -> str:
        """The URL of another database, as the same user."""
        start, slash, rest = self.url.rpartition("/")
        return f"{start}{slash}{database}{'?' if '?' in rest else ''}{rest.partition('?')[2]}"

    def start(self) -> None:
        """It runs already."""

    def status(self) -> ServerStatus:
        """Nobody has asked the server: only its address is known."""
        from onefold.local.local_server import ServerStatus

        return ServerStatus(self.name, True, None, None, Path(), "somebody else's", self.url)

    @property
    def hbase(self) -> ExternalServer:
        """Its parts can be struck as little as all of it."""
        return self

    thrift = master = hbase

    @property
    def thrifts(self) -> tuple[ExternalServer, ...]:
        return (self,)

    workers = thrifts

    def kill(self, *_given: object, **_more: object) -> NoReturn:
        """Skips the test."""
        _skip(f"{self.name} is somebody else's, and not ours to strike")

    stop = restart = pause = resume = cut = flush = major_compact = another_thrift = kill
    thrift1 = property(kill)


def _skip(reason: str) -> NoReturn:
    import pytest  # servers are also made where it is not installed

    pytest.skip(reason)


class Servers:
    """Makes servers of one kind, by default that which ONEFOLD_SERVERS names: new, empty, not started, for `with`."""

    def __init__(self, new_folder: Callable[[str], Path], kind: ServerKind | None = None) -> None:
        """`new_folder` makes an empty folder with a name that starts so: a local server's home."""
        self.kind = kind or server_kind()
        self._new_folder = new_folder
        self._network: Network | None = None
        self._running: list[Any] = []

    @property
    def network(self) -> Network:
        """Where its containers are, in reach of each other."""
        from onefold.testing.containers.network import Network

        if self._network is None:
            self._network = Network()
        return self._network

    @naming_extras()
    def kafka(self, **given: Any) -> KafkaServer | KafkaContainer:
        """`given` as KafkaServer and KafkaContainer take it."""
        if self._in_containers():
            from onefold.testing.containers.kafka import KafkaContainer

            return KafkaContainer(self.network, **given)
        from onefold.local import KafkaServer

        return KafkaServer(self._new_folder("kafka"), **given)

    @naming_extras()
    def postgres(self, **given: Any) -> PostgresServer | PostgresContainer:
        """`given` as PostgresServer and PostgresContainer take it."""
        if self._in_containers():
            from onefold.testing.containers.postgres import PostgresContainer

            return PostgresContainer(self.network, **given)
        from onefold.local import PostgresServer

        return PostgresServer(self._new_folder("postgres"), **given)

    @naming_extras()
    def hbase(self, **given: Any) -> HBaseServer | HBaseContainer:
        """`given` as HBaseServer and HBaseContainer take it."""
        if self._in_containers():
            from onefold.testing.containers.hbase import HBaseContainer

            return HBaseContainer(self.network, **given)
        from onefold.local import HBaseServer

        return HBaseServer(self._new_folder("hbase"), **given)

    @naming_extras()
    def mariadb(self, **given: Any) -> MariaDbServer:
        """A local one, also beside containers: there is no image of it."""
        if self.kind is ServerKind.EXTERNAL:
            self._skip()
        from onefold.local import MariaDbServer

        return MariaDbServer(self._new_folder("mariadb"), **given)

    @naming_extras()
    def spark_cluster(self, **given: Any) -> SparkCluster | SparkContainers:
        """`given` as SparkCluster and SparkContainers take it."""
        if self._in_containers():
            from onefold.testing.containers.spark import SparkContainers

            return SparkContainers(self.network, **given)
        from onefold.local import SparkCluster

        return SparkCluster(self._new_folder("spark"), **given)

    @contextmanager
    def running(self, name: str, **given: Any) -> Iterator[Any]:
        """The server of that name for a whole run, `kafka` for one: a new one, or the one that a variable names."""
        if self.kind is ServerKind.EXTERNAL:
            yield ExternalServer(name.removesuffix("_cluster"))
            return
        with getattr(self, name)(**given) as server:
            self._running.append(server)
            try:
                yield server
            finally:
                self._running.remove(server)

    def bring_back(self) -> None:
        """Mends, resumes and starts the servers of the whole run: a test that failed may have left them struck."""
        for server in self._running:
            if hasattr(server, "mend"):  # a container
                server.mend()
            with suppress(OnefoldError):  # it does not run
                server.resume()
            server.start()

    def close(self) -> None:
        """Removes what containers shared. They have been removed before."""
        if self._network is not None:
            self._network.remove()

    def _in_containers(self) -> bool:
        if self.kind is ServerKind.EXTERNAL:
            self._skip()
        return self.kind is ServerKind.CONTAINERS

    def _skip(self) -> NoReturn:
        _skip("this test starts a server of its own, and ONEFOLD_SERVERS=external has others used")
