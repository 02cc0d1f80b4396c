"""What a server needs of this machine before it starts: ports, room on the disk, and the lock of its folder."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from onefold.local.server_errors import LocalServerError, clear_disk_errors

HOST = "127.0.0.1"
# Below the range from which Linux takes the ports of outgoing connections (32768 and up). A port from that range can
# be lost while its server is down: a client that keeps reconnecting to it may even be given it as its own.
_PORTS = range(20_000, 32_000)
_PORT_TRIES_MAX = 50
_MB = 1024 * 1024


def is_free(port: int) -> bool:
    """True if a server could listen on `port` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: TIME_WAIT does not count
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
        return True


def choose_port(server: str, asked: int | None, remembered: int | None) -> int:
    """The port to listen on: the one asked for or an error; else the one of the last start; else a free one."""
    if asked is not None:
        if not is_free(asked):
            raise LocalServerError(
                "port-taken",
                f"port {asked} for {server} is taken{_holder(asked)}: end that process, ask for another port, "
                "or ask for none to have a free one chosen",
            )
        return asked
    if remembered is not None and is_free(remembered):
        return remembered
    for port in random.sample(_PORTS, _PORT_TRIES_MAX):
        if is_free(port):
            return port
    raise LocalServerError(
        "no-free-port",
        f"no free port found for {server} in {_PORT_TRIES_MAX} tries between {_PORTS.start} and {_PORTS.stop}: "
        "ask for one by number",
    )


def _holder(port: int) -> str:
    """' by process N (name)' where the system tells; it tells only root about other users' processes."""
    try:
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                if connection.pid is None:
                    break
                return f" by process {connection.pid} ({psutil.Process(connection.pid).name()})"
    except (psutil.Error, OSError):
        pass
    return ""


def require_space(folder: Path, bytes_min: int, purpose: str) -> None:
    """Raises unless the disk that holds `folder` (which need not exist yet) has `bytes_min` bytes free."""
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < bytes_min:
        raise LocalServerError(
            "disk-space-low",
            f"{purpose} needs {bytes_min // _MB} MB in {folder}, and its disk has {free // _MB} MB free: "
            "free some space, or choose a folder on another disk",
        )


@contextmanager
def exclusive(path: Path, timeout_s: float, purpose: str) -> Iterator[None]:
    """Holds the lock file `path`. The system gives the lock back when its holder dies, so it is never stale."""
    with clear_disk_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        # This user's alone: who may read it could hold it.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LocalServerError(
                        "locked-by-another-process",
                        f"{purpose}: another process has been at it for {timeout_s:.0f} s and holds {path}; "
                        "wait for it or end it",
                    ) from None
                time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)
