"""Servers that are not who they say they are: what our own TLS connections accept."""

from __future__ import annotations

import shutil
import socket
import ssl
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from harness.certificates import openssl, self_signed
from harness.errors import raises

from onefold.clients.kafka.broker_connection import Security
from onefold.core import ConfigError
from onefold.local import LocalServerError, MariaDbServer
from onefold.local.mariadb.binaries import mariadb_binaries
from onefold.store.checkpoint_store import CheckpointStore

_CA = """
[ca]
default_ca = revoked
[revoked]
database = index.txt
default_md = sha256
default_crl_days = 2
"""
_SIGNING = (
    "req -x509 -newkey rsa:2048 -nodes -days 2 -keyout ca.key -out ca.pem -subj /CN=ca",
    "req -newkey rsa:2048 -nodes -keyout kafka.key -out kafka.csr -subj /CN=kafka",
    "x509 -req -days 2 -in kafka.csr -CA ca.pem -CAkey ca.key -set_serial 0x17 -extfile names -out kafka.pem",
)
_REVOKING = "ca -gencrl -config ca.cnf -keyfile ca.key -cert ca.pem -out"
_REVOKED = "R\t360101000000Z\t260101000000Z\t{serial}\tunknown\t/CN=kafka\n"


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """A folder with an authority, a certificate of it for 127.0.0.1, and its lists: one is empty, one revokes that."""
    (tmp_path / "ca.cnf").write_text(_CA)
    (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
    for command in _SIGNING:
        openssl(tmp_path, *command.split())
    for name, index in (("empty", ""), ("revoking", _REVOKED.format(serial=17))):
        (tmp_path / "index.txt").write_text(index)
        openssl(tmp_path, *_REVOKING.split(), f"{name}.pem")
    return tmp_path


def _handshake(folder: Path, settings: dict[str, str]) -> None:
    """As a connection of ours does it, with a server that has the certificate."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "kafka.pem", folder / "kafka.key")
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            with server.wrap_socket(theirs, server_side=True) as accepted:
                accepted.recv(1)
        except OSError:
            theirs.close()

    serving = threading.Thread(target=serve)
    serving.start()
    context = Security.of({"security.protocol": "SSL", "ssl.ca.location": str(folder / "ca.pem"), **settings}).context()
    assert context is not None
    try:
        with context.wrap_socket(ours, server_hostname="127.0.0.1") as connected:
            connected.send(b"x")
    finally:
        ours.close()
        serving.join()


@pytest.mark.attack(
    who="a broker whose key was stolen and revoked", does="answers the sink's own requests", gets="no connection"
)
def test_a_certificate_that_the_revocation_list_names_is_refused(authority: Path) -> None:
    _handshake(authority, {"ssl.crl.location": str(authority / "empty.pem")})
    with pytest.raises(ssl.SSLCertVerificationError, match="revoked"):
        _handshake(authority, {"ssl.crl.location": str(authority / "revoking.pem")})


@pytest.mark.parametrize(
    "setting", ["ssl.providers", "ssl.sigalgs.list", "ssl.curves.list", "ssl.keystore.location", "ssl.key.pem"]
)
def test_a_tls_setting_that_our_own_connections_do_not_apply_is_refused(setting: str) -> None:
    with raises(ConfigError, "option-not-allowed", f"{setting}"):
        Security.of({"security.protocol": "SSL", setting: "x"})


def test_cipher_suites_and_folders_of_authorities_hold_for_our_own_connections_too(authority: Path) -> None:
    settings = {"security.protocol": "SSL", "ssl.cipher.suites": "ECDHE-RSA-AES256-GCM-SHA384"}
    context = Security.of({**settings, "ssl.ca.location": str(authority)}).context()
    assert context is not None
    assert [c["name"] for c in context.get_ciphers() if c["protocol"] == "TLSv1.2"] == ["ECDHE-RSA-AES256-GCM-SHA384"]


@pytest.fixture
def mariadb_with_tls(authority: Path, servers_directory: Path) -> Iterator[MariaDbServer]:
    try:
        mariadb_binaries()
    except LocalServerError as error:
        pytest.skip(str(error))
    with tempfile.TemporaryDirectory() as place:  # as root the server is another user, and cannot go to pytest's
        Path(place).chmod(0o755)
        files = [shutil.copy(authority / name, place) for name in ("kafka.pem", "kafka.key")]
        for file in files:
            Path(file).chmod(0o644)
        with MariaDbServer(servers_directory / "tls", settings={"ssl-cert": files[0], "ssl-key": files[1]}) as server:
            yield server
    shutil.rmtree(server.data)


def _store(url: str, **query: str) -> str:
    store = CheckpointStore(sa.make_url(url).update_query_dict(query).render_as_string(hide_password=False))
    try:
        return store.id()
    finally:
        store.close()


@pytest.mark.servers
@pytest.mark.attack(
    who="somebody on the network", does="answers as MariaDB, without TLS or with another certificate", gets="no login"
)
def test_a_mariadb_that_cannot_show_a_certificate_of_the_urls_authority_is_refused(
    mariadb_with_tls: MariaDbServer, mariadb_url: str, authority: Path
) -> None:
    with_tls = sa.make_url(mariadb_with_tls.url).set(database="test").render_as_string(hide_password=False)
    engine = sa.create_engine(mariadb_with_tls.url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE DATABASE IF NOT EXISTS test"))
    engine.dispose()
    assert _store(with_tls, ssl_ca=str(authority / "ca.pem"))
    other = self_signed(authority, "other", "other")
    with raises(ConfigError, "database-access-denied"):
        _store(with_tls, ssl_ca=str(other))
    with raises(ConfigError, "database-access-denied"):
        _store(mariadb_url, ssl_ca=str(authority / "ca.pem"))
