"""Translates librdkafka's settings into the Java client's, for Spark's own connector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from onefold.core.errors import ConfigError

__all__ = ["java_settings"]

_LOGINS = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_SAME = frozenset(
    {
        "check.crcs",
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "fetch.max.bytes",
        "fetch.min.bytes",
        "isolation.level",
        "max.partition.fetch.bytes",
        "metadata.max.age.ms",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "socket.connection.setup.timeout.ms",
        "ssl.key.password",
        "ssl.keystore.password",
    }
)
_RENAMED = {
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "socket.timeout.ms": "request.timeout.ms",
}


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise ConfigError(
            "file-unreadable", f"reader='spark' hands certificates over as text, and {path} can't be read: {error}"
        ) from None


# A value in librdkafka's form, to what it is for Java.
_TRANSLATED: Mapping[str, Callable[[str], dict[str, str]]] = {
    "security.protocol": lambda value: {"security.protocol": value.upper()},
    "ssl.ca.location": lambda value: {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _text(value)},
    "ssl.ca.pem": lambda value: {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": value},
    "ssl.certificate.location": lambda value: {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": _text(value),
    },
    "ssl.certificate.pem": lambda value: {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": value},
    "ssl.key.location": lambda value: {"ssl.keystore.key": _text(value)},
    "ssl.key.pem": lambda value: {"ssl.keystore.key": value},
    "ssl.keystore.location": lambda value: {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": value},
    "ssl.endpoint.identification.algorithm": lambda value: {
        "ssl.endpoint.identification.algorithm": "" if value.lower() == "none" else value
    },
}
_LOGIN = frozenset({"sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"})


def java_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """These settings of librdkafka's as the Java consumer wants them, committed records only unless they say otherwise.

    Raises `ConfigError` for one that has no counterpart there.
    """
    java = {"isolation.level": "read_committed"}
    for name, value in settings.items():
        if name in _SAME:
            java[name] = value
        elif name in _RENAMED:
            java[_RENAMED[name]] = value
        elif name in _TRANSLATED:
            java |= _TRANSLATED[name](value)
        elif name not in _LOGIN:
            raise ConfigError(
                "option-not-allowed",
                f"reader='spark' reads with the Java client, which has nothing like librdkafka's {name!r}: leave it"
                " out",
            )
    return java | _login(settings)


def _login(settings: Mapping[str, str]) -> dict[str, str]:
    mechanism = settings.get("sasl.mechanism", settings.get("sasl.mechanisms"))
    if mechanism is None:
        return {}
    if mechanism not in _LOGINS:
        raise ConfigError(
            "option-not-allowed",
            f"reader='spark' can log in by {', '.join(_LOGINS)}; for {mechanism} give the JVM a login configuration"
            " (java.security.auth.login.config) and read with reader='onefold'",
        )
    name, password = (_quoted(settings.get(key, "")) for key in ("sasl.username", "sasl.password"))
    login = f"{_LOGINS[mechanism]} required username={name} password={password};"
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": login}


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
