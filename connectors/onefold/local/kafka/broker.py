"""Kafka in KRaft mode: one process that is both broker and controller."""

from __future__ import annotations

import base64
import re
import shutil
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from onefold.local.artifacts import kafka_jars
from onefold.local.java import find_java
from onefold.local.kafka.recovery import SESSION_MS, TALKING, fence_earlier_life, was_killed
from onefold.local.local_server import LocalServer, local_address
from onefold.local.process import ProcessRef, ServerState, kill_tree, spawn, wait_gone
from onefold.local.resources import HOST, choose_port
from onefold.local.server_errors import LocalServerError

if TYPE_CHECKING:
    from rich.progress import Progress

_NODE = 1
_SCRAM = "SCRAM-SHA-512"
_SECURE = "SECURE"  # the listener for those who log in, beside the one for everybody
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
# The controller's level is a system property, for recovery.py.
_LOG4J = """status = warn
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %-5p %m (%c{1})%n
logger.controller.name = org.apache.kafka.controller.QuorumController
logger.controller.level = ${sys:onefold.controller:-info}
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""


class KafkaServer(LocalServer):
    """A broker on 127.0.0.1. Topics are made by its clients, and records are kept until their topic goes.

    With `users` (passwords by name), who can log in by SASL/SCRAM-SHA-512, there is a second address,
    `secure_servers`: SASL_SSL with `certificate`, a PEM file of the private key and then its certificates, else
    SASL_PLAINTEXT. The users are made along with the data folder; the first address stays open to everybody.
    """

    name = "kafka"

    def __init__(
        self,
        directory: Path | str,
        port: int | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        users: Mapping[str, str] | None = None,
        certificate: Path | None = None,
    ) -> None:
        super().__init__(directory, port, settings=settings)
        self._users = dict(users or {})
        self._certificate = certificate

    @property
    def bootstrap_servers(self) -> str:
        return self._address(self.port)

    @property
    def secure_servers(self) -> str:
        """Where users log in. Raises LocalServerError if the last start was without users."""
        state = ServerState.load(self._state_path)
        if state is None or state.third_port is None:
            raise LocalServerError(
                "kafka-without-users",
                f"kafka in {self.directory} was not started with users: KafkaServer(..., users=...)",
            )
        return self._address(state.third_port)

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
        secure_port = choose_port("Kafka's users", None, before.third_port if before else None) if self._users else None
        configuration = self._write("server.properties", self._configuration(port, controller_port, secure_port))
        if not (self._data / "meta.properties").exists():
            self._format(configuration)
        elif was_killed(self._data):
            alone = self._write("recovery.properties", self._controller_alone(controller_port))
            command: list[str | Path] = [*self._command((*_JVM, *TALKING)), "kafka.Kafka", alone]
            fence_earlier_life(command, home=self.home, log=self.log_path, port=controller_port)
        process = spawn([*self._command(_JVM), "kafka.Kafka", configuration], log=self.log_path, cwd=self.home)
        return ServerState(
            port=port, log=str(self.log_path), process=process, second_port=controller_port, third_port=secure_port
        )

    def _command(self, options: tuple[str, ...]) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self.home / 'log4j2.properties'}"
        return [str(self._java.path), *options, logging, "-cp", f"{self._jars}/*"]

    def _configuration(self, port: int, controller_port: int, secure_port: int | None) -> dict[str, str]:
        clients = f"PLAINTEXT://{HOST}:{port}"
        if secure_port is not None:
            clients += f",{_SECURE}://{HOST}:{secure_port}"
        return {
            "process.roles": "broker,controller",
            **self._quorum(controller_port),
            "listeners": f"{clients},CONTROLLER://{HOST}:{controller_port}",
            "advertised.listeners": clients,
            "inter.broker.listener.name": "PLAINTEXT",
            **self._security(),
            **_SETTINGS,
            **self._settings,
        }

    def _security(self) -> dict[str, str]:
        if not self._users:
            return {}
        mine = f"listener.name.{_SECURE.lower()}"
        login = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        security = {
            "sasl.enabled.mechanisms": _SCRAM,
            f"{mine}.{_SCRAM.lower()}.sasl.jaas.config": login,
        }
        if self._certificate is not None:
            security[f"{mine}.ssl.keystore.type"] = "PEM"
            security[f"{mine}.ssl.keystore.location"] = str(self._certificate)
        return security

    def _controller_alone(self, controller_port: int) -> dict[str, str]:
        return {
            "process.roles": "controller",
            **self._quorum(controller_port),
            "listeners": f"CONTROLLER://{HOST}:{controller_port}",
            **self._settings,
            "broker.session.timeout.ms": str(SESSION_MS),
        }

    def _quorum(self, controller_port: int) -> dict[str, str]:
        secure = "SASL_PLAINTEXT" if self._certificate is None else "SASL_SSL"
        return {
            "node.id": str(_NODE),
            "controller.quorum.voters": f"{_NODE}@{HOST}:{controller_port}",
            "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,{_SECURE}:{secure}",
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
        users = [f"--add-scram={_SCRAM}=[name={name},password={word}]" for name, word in self._users.items()]
        with self._arguments([f"--cluster-id={cluster_id}", f"--config={configuration}", *users]) as arguments:
            formatted = subprocess.run(
                [*command, f"@{arguments}"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_FORMAT_S_MAX,
                check=False,
            )
        if formatted.returncode != 0:
            said = (formatted.stdout + formatted.stderr).strip()
            raise LocalServerError(
                "kafka-format-failed", f"Kafka's data folder {self._data} could not be made: {said[-2000:]}"
            )

    @contextmanager
    def _arguments(self, arguments: Sequence[str]) -> Iterator[Path]:
        """A file of them, one a line: on a command line every user of the machine could read the passwords."""
        path = self.home / "arguments"
        path.unlink(missing_ok=True)
        path.touch(0o600, exist_ok=False)
        path.write_text("".join(f"{argument}\n" for argument in arguments))
        try:
            yield path
        finally:
            path.unlink()

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
