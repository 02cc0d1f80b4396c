"""A Spark cluster of its own: a standalone master and its workers, from the Spark that PySpark brings."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onefold.local.java import spark_environment
from onefold.local.local_server import LocalServer, ServerStatus, local_address
from onefold.local.owned import Owned
from onefold.local.process import ProcessRef, ServerState, kill_tree, log_tail, session_members, spawn, wait_gone
from onefold.local.resources import HOST, choose_port, exclusive
from onefold.local.secrets import new_password, write_secret
from onefold.local.server_errors import LocalServerError

if TYPE_CHECKING:
    from rich.progress import Progress

_STOP_S_MAX = 15.0
_PROBE_S_MAX = 2.0
_JOINED_S_MAX = 60.0
_LOCK_S_MAX = 60.0
_LOG4J = """rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{short}
"""


def conf_environment(directory: Path) -> dict[str, str]:
    """What has a Spark process take the cluster's secret from its file, which all need that are to speak with it."""
    folder = directory / "spark-conf"
    defaults = folder / "spark-defaults.conf"
    if not defaults.exists():
        with exclusive(directory / "spark-conf.lock", _LOCK_S_MAX, "making the Spark cluster's secret"):
            if not defaults.exists():
                folder.mkdir(exist_ok=True)
                text = (
                    f"spark.authenticate true\nspark.authenticate.secret {new_password()}\nspark.ui.killEnabled false\n"
                )
                write_secret(folder / "new", text)
                (folder / "new").replace(defaults)
    return {"SPARK_CONF_DIR": str(folder)}


class _Daemon(LocalServer):
    """One JVM of the cluster. `second_port` is its web page's, where it also tells its state as JSON."""

    def _prepare(self, progress: Progress | None) -> None:
        del progress  # PySpark brought everything
        (self.home / "log4j2.properties").write_text(_LOG4J)

    def _daemon(self, port: int, before: ServerState | None, kind: str, *arguments: str) -> ServerState:
        import pyspark

        spark_home = Path(pyspark.__file__).parent
        page = choose_port(f"{self.name}'s web page", None, before.second_port if before else None)
        scratch = self.home / "scratch"
        scratch.mkdir(exist_ok=True)
        options = f"-Dlog4j2.configurationFile=file:{self.home / 'log4j2.properties'} -XX:-UsePerfData"
        command: list[str | Path] = [
            *(spark_home / "bin" / "spark-class", f"org.apache.spark.deploy.{kind}"),
            *("--host", HOST, "--port", str(port), "--webui-port", str(page), *arguments),
        ]
        environment = {
            **spark_environment(),
            "SPARK_HOME": str(spark_home),
            **conf_environment(self.directory),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(scratch),
            "SPARK_DAEMON_MEMORY": "192m",
            "SPARK_DAEMON_JAVA_OPTS": options,
            # A job whose executors are killed again and again is what this cluster is for.
            "SPARK_MASTER_OPTS": "-Dspark.deploy.maxExecutorRetries=-1",
        }
        process = spawn(command, log=self.log_path, cwd=self.home, environment=environment)
        return ServerState(port=port, log=str(self.log_path), process=process, second_port=page)

    def _is_ready(self, port: int) -> bool:
        del port  # what it serves there cannot be asked for a sign of life
        return self.tells() is not None

    def _end(self, process: ProcessRef) -> None:
        process.signal(signal.SIGTERM)
        if not wait_gone([process], _STOP_S_MAX):
            kill_tree(process)

    def _address(self, port: int) -> str:
        return f"spark://{local_address(port)}"

    def tells(self) -> dict[str, Any] | None:
        """What the daemon says of itself; None if it doesn't answer."""
        state = ServerState.load(self._state_path)
        try:
            with urllib.request.urlopen(
                f"http://{HOST}:{state.second_port if state else 0}/json/", timeout=_PROBE_S_MAX
            ) as answer:
                status: dict[str, Any] = json.loads(answer.read())
                return status
        except (OSError, urllib.error.URLError, ValueError):
            return None


class _Master(_Daemon):
    name = "spark-master"

    def _launch(self, port: int, before: ServerState | None) -> ServerState:
        return self._daemon(port, before, "master.Master")

    @property
    def url(self) -> str:
        return self._address(self.port)


class _Worker(_Daemon):
    def __init__(self, directory: Path, number: int, master: _Master, cores: int, memory: str) -> None:
        self.name = f"spark-worker-{number}"
        super().__init__(directory)
        self._master, self._cores, self._memory = master, cores, memory

    def _launch(self, port: int, before: ServerState | None) -> ServerState:
        resources = ("--cores", str(self._cores), "--memory", self._memory, "--work-dir", str(self.home / "work"))
        return self._daemon(port, before, "worker.Worker", *resources, self._master.url)

    def session(self) -> int | None:
        """The session of the worker and of all that it starts, its executors' Python workers included."""
        running = self.status().pid
        try:
            return os.getsid(running) if running is not None else None
        except ProcessLookupError:
            return None


class SparkCluster(Owned):
    """A master and `workers` workers on 127.0.0.1. Several objects may speak of the same cluster, as of any server.

    Who has its random secret may run programs on it: Spark sessions that are started with `environment`, which names a
    file that only we can read. Its web pages show applications and their logs to anybody on this machine.
    """

    def __init__(self, directory: Path | str, workers: int = 2, *, cores: int = 2, memory: str = "2g") -> None:
        """`cores` and `memory` are each worker's: what it offers, not what the machine has."""
        self.directory = Path(directory).absolute()
        self._master = _Master(self.directory)
        self._workers = [_Worker(self.directory, n + 1, self._master, cores, memory) for n in range(workers)]

    @property
    def url(self) -> str:
        """What a Spark session takes as its master. Raises LocalServerError if the cluster was never started."""
        return self._master.url

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment before its Spark session starts."""
        return {**conf_environment(self.directory), "SPARK_LOCAL_IP": HOST, "PYSPARK_PYTHON": sys.executable}

    @property
    def scratch(self) -> list[Path]:
        """Where the executors keep their shuffle files."""
        return [worker.home / "scratch" for worker in self._workers]

    def sessions(self) -> list[int]:
        """The sessions that hold every process of the workers."""
        return [session for worker in self._workers if (session := worker.session()) is not None]

    def start(self, progress: Progress | None = None) -> None:
        """Starts what doesn't run, and waits until the master knows all workers."""
        self._started_it |= not self._master.status().running
        self._master.start(progress)
        for worker in self._workers:
            worker.start(progress)
        deadline = time.monotonic() + _JOINED_S_MAX
        while self._joined() < len(self._workers):
            if time.monotonic() > deadline:
                raise LocalServerError(
                    "spark-workers-missing",
                    f"the Spark master knows {self._joined()} of {len(self._workers)} workers after"
                    f" {_JOINED_S_MAX:.0f} s; {log_tail(self._workers[-1].log_path)}",
                )
            time.sleep(0.1)

    def stop(self) -> None:
        """Ends the workers, their executors, and the master; ends no process that is not theirs."""
        for worker in self._workers:
            session = worker.session()
            worker.stop()
            # Executors held still by SIGSTOP, and Python workers whose executor was killed, outlive their worker.
            for member in session_members(session) if session is not None else ():
                member.signal(signal.SIGKILL)
        self._master.stop()

    def kill(self) -> None:
        """SIGKILL for all of it with its executors, as a crash of the machine would: for crash tests. `start` brings
        it back."""
        members = [member for session in self.sessions() for member in session_members(session)]
        for daemon in (self._master, *self._workers):
            daemon.kill()
        for member in members:
            member.signal(signal.SIGKILL)

    def restart(self) -> None:
        """`stop` and `start`."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Holds all its processes that run still, executors too, until `resume`."""
        for daemon in self._running():
            daemon.pause()

    def resume(self) -> None:
        for daemon in self._running():
            daemon.resume()

    def status(self) -> ServerStatus:
        """The master's."""
        return self._master.status()

    def _running(self) -> list[_Daemon]:
        return [daemon for daemon in (self._master, *self._workers) if daemon.status().running]

    def _joined(self) -> int:
        status = self._master.tells() or {}
        return sum(worker["state"] == "ALIVE" for worker in status.get("workers", ()))
