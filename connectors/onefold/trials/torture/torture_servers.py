"""The servers that a torture strikes: processes of this machine, or containers, with the same calls."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onefold.core.errors import ConfigError
from onefold.core.extras import naming_extras
from onefold.local.process import session_members
from onefold.testing.servers import ServerKind, Servers
from onefold.trials.torture.torture_settings import TortureSettings

if TYPE_CHECKING:
    from rich.progress import Progress

    from onefold.local import HBaseServer, KafkaServer, PostgresServer, SparkCluster
    from onefold.testing import HBaseContainer, KafkaContainer, PostgresContainer, SparkContainers

THRIFT_SERVERS = 2


@dataclass(frozen=True, slots=True)
class TortureServers:
    """Those of one run. Not started."""

    kafka: KafkaServer | KafkaContainer
    postgres: PostgresServer | PostgresContainer | None  # none where neither rows nor the checkpoint store are in it
    hbase: HBaseServer | HBaseContainer | None
    cluster: SparkCluster | SparkContainers | None

    @classmethod
    def of(cls, settings: TortureSettings, directory: Path, cleanup: ExitStack) -> TortureServers:
        """`cleanup` ends them, and keeps what containers said. Raises ConfigError or ContainerError without what
        containers need."""
        make = Servers(lambda _name: directory / "servers", ServerKind(settings.servers))
        cleanup.callback(make.close)
        with naming_extras():
            made = cls(
                make.kafka(),
                make.postgres() if settings.needs_postgres else None,
                make.hbase(thrift_servers=THRIFT_SERVERS) if settings.needs_hbase else None,
                make.spark_cluster() if settings.on_cluster else None,
            )
        for server in made.all:
            cleanup.push(server)
        if settings.in_containers:
            cleanup.callback(_keep_logs, made.all, directory / "logs")
        return made

    @property
    def all(self) -> list[Any]:
        """In the order of their start."""
        return [server for server in (self.kafka, self.postgres, self.hbase, self.cluster) if server is not None]

    def start(self, progress: Progress) -> None:
        for server in self.all:
            server.start(progress)
        if self.cluster:
            os.environ.update(self.cluster.environment)  # of the jobs, which are processes of this one
            _require_signals(self.cluster.sessions())


def _require_signals(sessions: list[int]) -> None:
    """Raises ConfigError where executors run as somebody whose processes are not ours to strike."""
    try:
        for member in (member for session in sessions for member in session_members(session)):
            with suppress(ProcessLookupError):
                os.kill(member.pid, 0)
    except PermissionError:
        raise ConfigError(
            "executors-not-ours",
            "executors in containers are processes of another user, which only root may signal: run the torture as"
            " root, or with --master local, or on local servers",
        ) from None


def _keep_logs(servers: list[Any], folder: Path) -> None:
    for server in servers:
        for container in getattr(server, "members", (server,)):
            if said := container.logs():
                (folder / f"{container.name}.log").write_text(said)
