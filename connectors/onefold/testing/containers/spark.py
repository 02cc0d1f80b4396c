"""A Spark cluster in containers: a standalone master and its workers, for a driver on this machine."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onefold.local.local_server import ServerStatus
from onefold.local.secrets import new_password, write_secret
from onefold.testing.container_errors import ContainerError
from onefold.testing.containers.group import ContainerGroup
from onefold.testing.containers.network import Network
from onefold.testing.containers.server_container import ServerContainer

_MASTER, _PAGE = 7077, 8080
_PROBE_S_MAX = 2.0
_JOINED_S_MAX = 60.0
_SCRATCH = "/tmp/scratch"
_CONF = "/etc/spark-conf"


class _Daemon(ServerContainer):
    """One JVM of the cluster."""

    image = "onefold"

    def __init__(self, network: Network, secret: str, folders: Sequence[Path]) -> None:
        super().__init__(network)
        self.secret, self.folders = secret, folders

    def _environment(self) -> dict[str, str]:
        return {
            "SPARK_CONF_DIR": _CONF,
            "SPARK_LOCAL_IP": self.address,
            "SPARK_LOCAL_DIRS": _SCRATCH,
            "SPARK_DAEMON_MEMORY": "192m",
            # A job whose executors are killed again and again is what this cluster is for.
            "SPARK_MASTER_OPTS": "-Dspark.deploy.maxExecutorRetries=-1",
            "PYSPARK_PYTHON": "python3",
        }

    def _files(self) -> dict[str, str]:
        return {f"{_CONF}/spark-defaults.conf": self.secret}

    def _folders(self) -> Sequence[Path]:
        return self.folders

    def _is_ready(self) -> bool:
        return self.tells() is not None

    def tells(self) -> dict[str, Any] | None:
        """What the daemon says of itself; None if it doesn't answer."""
        try:
            with urllib.request.urlopen(
                f"http://{self.reached_at(self.ports[-1])}/json/", timeout=_PROBE_S_MAX
            ) as answer:
                status: dict[str, Any] = json.loads(answer.read())
                return status
        except (OSError, urllib.error.URLError, ValueError):
            return None


class _Master(_Daemon):
    name = "spark-master"
    ports = (_MASTER, _PAGE)

    def _command(self) -> list[str]:
        where = ["--host", self.address, "--port", str(_MASTER), "--webui-port", str(_PAGE)]
        return ["spark-class", "org.apache.spark.deploy.master.Master", *where]


class _Worker(_Daemon):
    ports = (_PAGE,)

    def __init__(self, master: _Master, number: int, cores: int, memory: str) -> None:
        super().__init__(master.network, master.secret, master.folders)
        self.name = f"spark-worker-{number}"
        self._master, self._cores, self._memory = master, cores, memory

    def _command(self) -> list[str]:
        where = ["--host", self.address, "--webui-port", str(_PAGE), "--work-dir", "/tmp/work"]
        what = ["--cores", str(self._cores), "--memory", self._memory]
        master = f"spark://{self._master.address}:{_MASTER}"
        return ["spark-class", "org.apache.spark.deploy.worker.Worker", *where, *what, master]


class SparkContainers(ContainerGroup):
    """A master and `workers` workers. The driver is a process of this machine, with `environment` set before it starts;
    executors run the onefold of the image, with the same minor version of Python as the driver's.

    Who has its random secret may run programs on it: Spark sessions that are started with `environment`, which names a
    file that only we can read. `folders` are seen by executors under the same path, for files that driver and executors
    share.
    """

    name = "spark"

    def __init__(
        self,
        network: Network | None = None,
        workers: int = 2,
        *,
        cores: int = 2,
        memory: str = "2g",
        folders: Sequence[Path] = (),
    ) -> None:
        """`cores` and `memory` are each worker's: what it offers, not what the machine has."""
        super().__init__(network)
        self._secret = (
            f"spark.authenticate true\nspark.authenticate.secret {new_password()}\nspark.ui.killEnabled false\n"
        )
        self.master = _Master(self.network, self._secret, folders)
        self.workers = [_Worker(self.master, n + 1, cores, memory) for n in range(workers)]
        self._conf: tempfile.TemporaryDirectory[str] | None = None

    @property
    def members(self) -> Sequence[ServerContainer]:
        return [self.master, *self.workers]

    @property
    def url(self) -> str:
        """What a Spark session takes as its master."""
        return f"spark://{self.master.reached_at(_MASTER)}"

    @property
    def environment(self) -> dict[str, str]:
        """What a process of this machine needs in its environment before its Spark session starts."""
        self._require_direct()
        if self._conf is None:
            self._conf = tempfile.TemporaryDirectory(prefix="onefold-spark-")
            write_secret(Path(self._conf.name) / "spark-defaults.conf", self._secret)
        return {
            "SPARK_CONF_DIR": self._conf.name,
            "SPARK_LOCAL_IP": self.network.gateway,  # where executors find the driver
            # One name that driver and executors each find on their PATH: Python sources run in both.
            "PYSPARK_PYTHON": "python3",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }

    @property
    def scratch(self) -> list[Path]:
        """Where the executors keep their shuffle files, as the engine's machine sees it (only as root)."""
        pids = (worker.pid for worker in self.workers)
        return [Path(f"/proc/{pid}/root{_SCRATCH}") for pid in pids if pid is not None]

    def sessions(self) -> list[int]:
        """The sessions that hold every process of the workers, as this machine numbers them."""
        found = []
        for worker in self.workers:
            pid = worker.pid
            try:
                found += [os.getsid(pid)] if pid is not None else []
            except ProcessLookupError:
                continue
        return found

    def start(self, progress: object = None) -> None:
        """Starts what doesn't run, and waits until the master knows all workers."""
        del progress
        self._require_direct()
        for member in self.members:
            member.start()
        deadline = time.monotonic() + _JOINED_S_MAX
        while (joined := self._joined()) < len(self.workers):
            if time.monotonic() > deadline:
                raise ContainerError(
                    "spark-containers-missing",
                    f"the Spark master knows {joined} of {len(self.workers)} workers after {_JOINED_S_MAX:.0f} s; the"
                    f" end of the log of the last one:\n{self.workers[-1].logs(15)}",
                )
            time.sleep(0.1)

    def status(self) -> ServerStatus:
        """The master's."""
        return self.master.status()

    def remove(self) -> None:
        super().remove()
        if self._conf is not None:
            self._conf.cleanup()

    def _joined(self) -> int:
        status = self.master.tells() or {}
        return sum(worker["state"] == "ALIVE" for worker in status.get("workers", ()))

    def _require_direct(self) -> None:
        if not self.network.start().direct:
            raise ContainerError(
                "engine-elsewhere",
                "executors in containers have to reach the driver, a process of this machine, and the container engine"
                " is not on this machine or not on Linux: run the driver in a container too (docs/containers.md), or"
                " take a local cluster (ONEFOLD_SERVERS=local)",
            )
