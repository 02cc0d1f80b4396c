"""Kafka in KRaft mode: one process that is both broker and controller."""

from __future__ import annotations

import base64
import re
import shutil
import signal
import socket
import subprocess
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from onefold.local.artifacts import kafka_jars
from onefold.local.errors import LocalServerError
from onefold.local.java import find_java
from onefold.local.kafka_recovery import SESSION_MS, fence_earlier_life, was_killed
from onefold.local.process import ProcessRef, ServerState, kill_tree, spawn, wait_gone
from onefold.local.resources import HOST, choose_port
from onefold.local.server import LocalServer, local_address

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["KafkaServer"]

_NODE = 1
_STOP_S_MAX = 20.0
_FORMAT_S_MAX = 120.0
_PROBE_S_MAX = 2.0
_JVM = ("-Xms128m", "-Xmx320m", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:+ExitOnOutOfMemoryError")
_SETTINGS = {
    "auto.create.topics.enable": "false",  # a mistyped topic is an error, not a new topic
    "num.partitions": "3",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # A single node gains nothing from being fenced when it is slow or paused, and could lose markers (kafka_recovery).
    "broker.session.timeout.ms": "600000",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.ms": "-1",
    "log.retention.bytes": "-1",
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),  # 128 MB by default, of a heap of 320
}
# To the console, which is the log file: what the JVM itself says when it dies then stands in the same place.
_LOG4J = """status = warn
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %-5p %m (%c{1})%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""


class KafkaServer(LocalServer):
    """A broker on 127.0.0.1. Topics are made by its clients, and records are kept until their topic goes."""

    name = "kafka"

    @property
    def bootstrap_servers(self) -> str:
        return self._address(self.port)

    @property
    def _data(self) -> Path:
        return self.home / "data"

    def _address(self, port: int) -> str:
        return local_address(port)

    def _prepare(self, progress: Progress | None) -> None:
        self._java = find_java()
        self._jars = kafka_jars(self._java, progress)
        (self.home / "log4j2.properties").write_text(_LOG4J)

    def _launch(self, port: int, before: ServerState | None) -> ServerState:
        controller_port = choose_port("Kafka's controller", None, before.second_port if before else None)
        configuration = self._write("server.properties", self._configuration(port, controller_port))
        if not (self._data / "meta.properties").exists():
            self._format(configuration)
        elif was_killed(self._data):
            alone = self._write("recovery.properties", self._controller_alone(controller_port))
            command: list[str | Path] = [*self._command(_JVM), "kafka.Kafka", alone]
            fence_earlier_life(command, home=self.home, log=self.log_path, port=controller_port)
        process = spawn([*self._command(_JVM), "kafka.Kafka", configuration], log=self.log_path, cwd=self.home)
        return ServerState(port=port, log=str(self.log_path), process=process, second_port=controller_port)

    def _command(self, options: tuple[str, ...]) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self.home / 'log4j2.properties'}"
        return [str(self._java.path), *options, logging, "-cp", f"{self._jars}/*"]

    def _configuration(self, port: int, controller_port: int) -> dict[str, str]:
        return {
            "process.roles": "broker,controller",
            **self._quorum(controller_port),
            "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
            "inter.broker.listener.name": "PLAINTEXT",
            **_SETTINGS,
            **self._settings,
        }

    def _controller_alone(self, controller_port: int) -> dict[str, str]:
        return {
            "process.roles": "controller",
            **self._quorum(controller_port),
            "listeners": f"CONTROLLER://{HOST}:{controller_port}",
            "broker.session.timeout.ms": str(SESSION_MS),
        }

    def _quorum(self, controller_port: int) -> dict[str, str]:
        return {
            "node.id": str(_NODE),
            "controller.quorum.voters": f"{_NODE}@{HOST}:{controller_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self._data),
        }

    def _write(self, name: str, values: dict[str, str]) -> Path:
        path = self.home / name
        path.write_text("".join(f"{key}={_escaped(value)}\n" for key, value in values.items()))
        return path

    def _format(self, configuration: Path) -> None:
        """Gives the data folder its cluster id. `meta.properties` comes last, so a half-made folder is made anew."""
        shutil.rmtree(self._data, ignore_errors=True)
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = [*self._command(("-Xmx128m",)), "kafka.tools.StorageTool", "format"]
        formatted = subprocess.run(
            [*command, f"--cluster-id={cluster_id}", "--config", str(configuration)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_FORMAT_S_MAX,
            check=False,
        )
        if formatted.returncode != 0:
            said = (formatted.stdout + formatted.stderr).strip()
            raise LocalServerError(f"Kafka's data folder {self._data} could not be made: {said[-2000:]}")

    def _is_ready(self, port: int) -> bool:
        """The broker answers, and with the cluster id of our data: it is not somebody else's."""
        if not _listens(port):  # librdkafka would write each refused connection to stderr
            return False
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        client = AdminClient({"bootstrap.servers": local_address(port), "log_level": 0, "socket.timeout.ms": 2000})
        try:
            metadata = client.list_topics(timeout=_PROBE_S_MAX)
        except KafkaException:
            return False
        return bool(metadata.brokers) and metadata.cluster_id == self._cluster_id()

    def _cluster_id(self) -> str | None:
        found = re.search(r"^cluster\.id=(.+)$", (self._data / "meta.properties").read_text(), re.MULTILINE)
        return found[1].strip() if found else None

    def _end(self, process: ProcessRef) -> None:
        process.signal(signal.SIGTERM)
        if not wait_gone([process], _STOP_S_MAX):
            kill_tree(process)


def _listens(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=_PROBE_S_MAX):
            return True
    except OSError:
        return False


def _escaped(value: str) -> str:
    """Java's properties files read a backslash as the start of an escape."""
    return value.replace("\\", "\\\\")
