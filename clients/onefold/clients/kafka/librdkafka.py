"""What all who hand settings to librdkafka need to know of them: Kafka's sources and its sinks. Imports no Kafka."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from onefold.core.errors import ConfigError, OnefoldError, Retriable

__all__ = ["JAVAS_OWN", "SECURITY", "Settings", "check", "near", "refused_by_client", "unreachable"]

Settings = Mapping[str, str]

JAVAS_OWN = {
    "sasl.jaas.config": "it is a setting of the Java client: use sasl.mechanism, sasl.username and sasl.password",
    "ssl.truststore.location": "it is a setting of the Java client: use ssl.ca.location (PEM)",
    "ssl.truststore.password": "it is a setting of the Java client: use ssl.ca.location (PEM)",
    "ssl.keystore.type": "it is a setting of the Java client: use ssl.keystore.location (PKCS#12)",
}

# What people set, for the nearest match of a misspelt name; librdkafka itself decides what exists.
SECURITY = (
    "security.protocol",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.username",
    "sasl.password",
    "sasl.kerberos.principal",
    "sasl.kerberos.service.name",
    "sasl.kerberos.keytab",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.token.endpoint.url",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.key.location",
    "ssl.key.pem",
    "ssl.key.password",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.endpoint.identification.algorithm",
    "ssl.cipher.suites",
    "client.id",
    "client.dns.lookup",
    "socket.timeout.ms",
    "socket.keepalive.enable",
    "socket.connection.setup.timeout.ms",
    "broker.address.family",
    "metadata.max.age.ms",
    "reconnect.backoff.ms",
    "reconnect.backoff.max.ms",
)

_SSL, _AUTHENTICATION = -181, -169  # librdkafka's own codes are below 0
REFUSALS = frozenset({_AUTHENTICATION, _SSL, 29, 31, 53, 58})  # topic, cluster, transactional id; SASL


class Said(Protocol):
    """A KafkaError, as confluent-kafka hands it out."""

    def code(self) -> int: ...

    def str(self) -> str: ...


def check(settings: Settings, refused: Mapping[str, str]) -> None:
    """Raise ConfigError, with the reason, for a setting in `refused`, and for what is no text. It quotes no value: any
    may be a password."""
    for name, value in settings.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigError(
                f"Kafka settings are texts, and the value of {name!r} is a {type(value).__name__}: write it as str, in"
                " quotes"
            )
        if name in refused:
            raise ConfigError(f"the Kafka setting {name!r} cannot be given: {refused[name]}")


def near(name: str, known: Collection[str]) -> str:
    """`; did you mean ...?`, or nothing."""
    close = difflib.get_close_matches(name, list(known), 1) if name and name not in known else []
    return f"; did you mean {close[0]!r}?" if close else ""


def refused_by_client(said: str, known: Sequence[str]) -> ConfigError:
    """A client could not be made from these settings: a name or a value that librdkafka doesn't know."""
    name = said.split('"')[1] if said.count('"') >= 2 else ""
    hint = near(name, known) or "; the names are librdkafka's (its CONFIGURATION.md)"
    return ConfigError(f"Kafka client settings: {said}{hint}")


def unreachable(what: str, bootstrap_servers: str, timeout_s: float, errors: Sequence[Said], acls: str) -> OnefoldError:
    """What to raise when a broker gave no answer: the last thing that the client said of its connections counts."""
    for error in errors:
        if error.code() in REFUSALS:
            return ConfigError(
                f"Kafka at {bootstrap_servers} refused us while {what}: {error.str()}. Check security.protocol, the "
                f"sasl.* and ssl.* settings, and the ACLs ({acls})"
            )
    said = "; ".join(dict.fromkeys(error.str() for error in errors)) or "no answer"
    return Retriable(
        f"Kafka at {bootstrap_servers} did not answer within {timeout_s:g} s while {what} ({said}). Is the broker up, "
        "is bootstrap_servers right, and are its advertised.listeners reachable from this machine?"
    )
