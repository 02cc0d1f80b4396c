"""Connections as they are in the field: PgBouncer, a standby, certificates, on the servers of this machine."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from harness.certificates import openssl
from harness.passwords import password_at, password_of, plain_url

from onefold.local import LocalServerError, PostgresServer
from onefold.local.cache import cache_directory
from onefold.local.debian import unpack
from onefold.local.postgres.binaries import SYSTEM_CACHE, postgres_binaries, run, service_user
from onefold.local.process import ProcessRef, kill_tree, spawn
from onefold.local.resources import HOST, exclusive
from onefold.testing import PostgresContainer

# For servers whose processes are killed, but never their machine: what they wrote is in the kernel's hands already.
QUICK = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "64MB"}
_READY_S_MAX = 10.0
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def with_parameters(url: str, **changes: str) -> str:
    """`url` with libpq parameters changed, as a connection string."""
    return psycopg.conninfo.make_conninfo(url, **changes)


@contextmanager
def pgbouncer(
    directory: Path, server_url: str, mode: str, users: Mapping[str, str] | None = None, **settings: str
) -> Iterator[str]:
    """A PgBouncer of `mode` before the server; yields the URL of the same database through it.

    `users` with their passwords make it ask for them; without, it lets in whoever comes, as whom they say they are.
    """
    program, environment = _pgbouncer_program()
    at = psycopg.conninfo.conninfo_to_dict(server_url)
    port = _free_port()
    lines = [
        "[databases]",
        f"* = host={at['host']} port={at['port']}",
        "[pgbouncer]",
        *(f"{key} = {value}" for key, value in _settings(port, mode, users, settings).items()),
    ]
    known = users or {str(at["user"]): password_at(server_url)}
    (directory / "users.txt").write_text("".join(f'"{name}" "{word}"\n' for name, word in known.items()))
    (directory / "pgbouncer.ini").write_text("\n".join(lines) + "\n")
    user = service_user(directory)
    for path in (directory, *directory.iterdir()):
        _give(path, user)
    process = spawn(
        [program, "/proc/self/cwd/pgbouncer.ini"],
        log=directory / "log",
        cwd=directory,
        environment=environment,
        user=user,
    )
    try:
        _await_port(port, directory / "log")
        yield with_parameters(server_url, host=HOST, port=str(port))
    finally:
        kill_tree(process)


def _settings(port: int, mode: str, users: Mapping[str, str] | None, more: Mapping[str, str]) -> dict[str, str]:
    return {
        "listen_addr": HOST,
        "listen_port": str(port),
        "unix_socket_dir": "",
        "pool_mode": mode,
        "logfile": "/proc/self/cwd/pgbouncer.log",
        "auth_type": "trust" if users is None else "scram-sha-256",
        "auth_file": "/proc/self/cwd/users.txt",
        **more,
    }


def _pgbouncer_program() -> tuple[Path, dict[str, str]]:
    """The installed one, else Debian's package unpacked into the cache; skips the test where neither can be had."""
    if installed := shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin"):
        return Path(installed), {}
    folder = (SYSTEM_CACHE if os.geteuid() == 0 else cache_directory()) / "pgbouncer"
    if not folder.exists():
        with exclusive(folder.parent / "pgbouncer.lock", 120, "fetching PgBouncer"):
            if not folder.exists():  # another process was quicker
                try:
                    unpack("pgbouncer", folder)
                except LocalServerError as error:
                    pytest.skip(f"PgBouncer is not installed, and its Debian package could not be fetched: {error}")
    libraries = {str(path.parent) for path in folder.rglob("libcares.so.2")}
    return folder / "usr" / "sbin" / "pgbouncer", {"LD_LIBRARY_PATH": ":".join(libraries)}


@contextmanager
def standby(directory: Path, primary: Any) -> Iterator[Any]:
    """A second server that follows `primary` by streaming replication; stopped when the block ends."""
    if isinstance(primary, PostgresContainer):
        with PostgresContainer(primary=primary, settings=primary.settings) as follower:
            plain_url(follower)
            yield follower
        return
    server = PostgresServer(directory)
    data = server.home / "data"
    data.mkdir(parents=True, mode=0o700)
    user = service_user(primary.home / "data")
    _give(data, user)
    url = with_parameters(plain_url(primary), password=password_of(primary))  # which it keeps, to follow
    run(
        [postgres_binaries(user) / "pg_basebackup", "-d", url, "-D", ".", "-R", "-c", "fast", "--no-sync"],
        cwd=data,
        user=user,
    )
    shutil.copy2(primary.passfile, server.passfile)  # the password came along with the data
    with server:
        plain_url(server)
        yield server


@contextmanager
def held(server: Any) -> Iterator[None]:
    """A server that is there and does nothing, as under a hypervisor that paused it or on storage that hangs."""
    server.pause()
    try:
        yield
    finally:
        server.resume()


@contextmanager
def frozen(server: Any, pid: int) -> Iterator[None]:
    """The same of one of its processes, by the number that the server knows it by."""

    def send(number: signal.Signals) -> None:
        if isinstance(server, PostgresContainer):
            server.execute("bash", "-c", f"kill -{number.value} {pid}")
        else:
            process = ProcessRef.of(pid)
            assert process is not None, pid
            process.signal(number)

    send(signal.SIGSTOP)
    try:
        yield
    finally:
        send(signal.SIGCONT)


def _give(path: Path, user: str | None) -> None:
    if user is not None:
        shutil.chown(path, user)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _await_port(port: int, log: Path) -> None:
    deadline_s = time.monotonic() + _READY_S_MAX
    while True:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < deadline_s, log.read_text()
            time.sleep(0.05)


class Certificates:
    """An authority, `ca`, with a server's and clients' certificates; and another authority, `other`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for authority in ("ca", "other"):
            self._openssl(
                "req", "-x509", *_KEY, "-keyout", f"{authority}.key", "-out", f"{authority}.crt",
                "-days", "2", "-subj", f"/CN=onefold test {authority}",
            )  # fmt: skip
        self._signed("server", "ca", "localhost")
        self._signed("onefold", "ca", "onefold")
        self._signed("stranger", "other", "onefold")

    def of(self, client: str) -> dict[str, str]:
        """libpq's parameters for a client that trusts nobody but `ca`."""
        return {
            "sslmode": "verify-full",
            "sslrootcert": str(self.folder / "ca.crt"),
            "sslcert": str(self.folder / f"{client}.crt"),
            "sslkey": str(self.folder / f"{client}.key"),
        }

    def _signed(self, name: str, authority: str, subject: str) -> None:
        (self.folder / "san").write_text(f"subjectAltName=DNS:{subject}\n")
        self._openssl("req", *_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={subject}")
        self._openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.crt", "-CAkey", f"{authority}.key",
            "-CAcreateserial", "-out", f"{name}.crt", "-days", "2", "-extfile", "san",
        )  # fmt: skip
        (self.folder / f"{name}.key").chmod(0o600)

    def _openssl(self, *arguments: str) -> None:
        openssl(self.folder, *arguments)
