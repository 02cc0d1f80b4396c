"""Certificates for servers on this machine, and a Kafka that wants a login over TLS."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from onefold.local import KafkaServer

__all__ = ["PASSWORD", "openssl", "secure_kafka", "self_signed"]

PASSWORD = 'se"cr\\et='
_SIGNED_BY_ITSELF = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2")


def openssl(folder: Path, *arguments: str) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("certificates are made with openssl, which is not installed")
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


def self_signed(folder: Path, name: str, subject: str) -> Path:
    """A certificate of its own for 127.0.0.1; its key is beside it, as `.key`."""
    files = ("-keyout", f"{name}.key", "-out", f"{name}.pem")
    openssl(folder, *_SIGNED_BY_ITSELF, *files, "-subj", f"/CN={subject}", "-addext", "subjectAltName=IP:127.0.0.1")
    return folder / f"{name}.pem"


@contextmanager
def secure_kafka(home: Path, settings: Mapping[str, str]) -> Iterator[tuple[KafkaServer, dict[str, str]]]:
    """A server with the user alice, and what librdkafka is told to log in as her."""
    certificate = self_signed(home, "kafka", "kafka")
    both = home / "both.pem"
    both.write_text((home / "kafka.key").read_text() + certificate.read_text())
    login = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
        "ssl.ca.location": str(certificate),
    }
    with KafkaServer(home, settings=settings, users={"alice": PASSWORD}, certificate=both) as server:
        yield server, login
