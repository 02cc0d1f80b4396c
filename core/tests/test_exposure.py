"""Which settings leave connections open to whoever is on the network between."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from harness.errors import raises

from onefold.clients import exposure
from onefold.clients.sql.database import Database
from onefold.core import ConfigError

CA = "ssl_ca=/etc/ca.pem"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://u:hidden@db/d", "sslmode is not in the URL, and somebody on the network can read and change"),
        ("postgresql://u:hidden@db/d?sslmode=prefer", "sslmode is prefer, and somebody on the network"),
        (
            "postgresql://u:hidden@db/d?sslmode=require",
            "sslmode is require, and whoever answers is taken for the server",
        ),
        ("postgresql://u:hidden@db/d?sslmode=verify-ca", "whoever answers"),
        ("postgresql://u:hidden@db/d?sslmode=verify-full", ""),
        ("postgresql://u:hidden@/d?host=127.0.0.1,db", "sslmode"),
        ("postgresql://u:hidden@/d?host=localhost,127.0.0.2,::1", ""),
        ("postgresql://u:hidden@/d?host=/run/postgresql", ""),
        ("postgresql://u:hidden@/d?host=localhost&hostaddr=10.0.0.1", "sslmode"),
        ("postgresql:///d", ""),
        ("postgresql:///d?service=shop", "sslmode"),
        ("mariadb://u:hidden@db/d", "names no ssl_ca"),
        ("mariadb://u:hidden@db/d?ssl_check_hostname=true", "names no ssl_ca"),
        (f"mariadb://u:hidden@db/d?{CA}", ""),
        (f"mariadb://u:hidden@db/d?{CA}&ssl_check_hostname=false", "ssl_check_hostname changes"),
        (f"mariadb://u:hidden@db/d?{CA}&ssl_verify_cert=false", "ssl_verify_cert changes"),
        (f"mysql://u:hidden@db/d?{CA}&ssl_disabled=1", "ssl_disabled changes"),
        ("mariadb://u:hidden@127.0.0.1/d", ""),
        ("mariadb://u:hidden@/d?unix_socket=/run/mysqld.sock", ""),
        ("sqlite:////tmp/d.db", ""),
    ],
)
def test_a_url_says_whether_its_server_is_reached_by_tls_and_verified(
    url: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGHOST", raising=False)
    said = exposure.of_url(url, "the")
    assert bool(said) == bool(says) and says in said and "hidden" not in said


def test_a_host_of_libpqs_environment_is_not_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "db")
    assert exposure.of_url("postgresql:///d", "the")


@pytest.mark.parametrize(
    ("servers", "settings", "says"),
    [
        ("b:9092", {}, "security.protocol is plaintext"),
        ("b:9092", {"security.protocol": "SASL_PLAINTEXT"}, "security.protocol is sasl_plaintext"),
        ("b:9092", {"security.protocol": "sasl_ssl"}, ""),
        ("b:9092", {"security.protocol": "SSL", "enable.ssl.certificate.verification": "False"}, "whoever answers"),
        ("b:9092", {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "none"}, "whoever answers"),
        ("localhost:1,[::1]:2", {}, ""),
        ("PLAINTEXT://127.0.0.1:1", {}, ""),
        ("localhost:1,b:2", {}, "security.protocol"),
    ],
)
def test_kafkas_settings_say_it_too(servers: str, settings: Mapping[str, str], says: str) -> None:
    said = exposure.of_kafka(servers, settings)
    assert bool(said) == bool(says) and says in said


@pytest.mark.parametrize(
    ("url", "is_exposed"),
    [
        ("http://registry:8081", True),
        ("https://registry", False),
        ("http://u:p@localhost:8081/x", False),
        ("http://localhost", False),
        ("https://registry,http://u:localhost@other:1", True),
    ],
)
def test_a_registrys_url_says_it_too(url: str, is_exposed: bool) -> None:
    assert bool(exposure.of_registry(url)) is is_exposed


def test_what_does_not_say_how_its_servers_are_reached_is_refused() -> None:
    with raises(ConfigError, "tls-required", "'s'"):
        exposure.require_tls([("sink 's'", object())])


def test_a_url_by_which_a_server_may_read_this_machines_files_is_refused() -> None:
    with raises(ConfigError, "option-not-allowed"):
        Database("mariadb://u@db/d?local_infile=1", 1.0)
