"""librdkafka's settings: which of them a user may give, which are ours, and the clients that are made of them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from onefold.clients.kafka import error_codes
from onefold.core.errors import ConfigError, OnefoldError
from onefold.core.values.names import near

Settings = Mapping[str, str]
Client = TypeVar("Client")

NO_TOPIC_ID = "A" * 22  # what a broker answers that knows no topic ids (before Kafka 2.8)
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


class _Seldom(logging.Filter):
    """Leaves out what was said before in `WITHIN_S`, and what is beyond `LINES_MAX` lines: while brokers are away, each
    connection of each client says so, time and again."""

    LINES_MAX = 10
    WITHIN_S = 60.0

    def __init__(self) -> None:
        super().__init__()
        self._began_s = -math.inf
        self._lines = 0
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        text, now_s = record.getMessage(), time.monotonic()
        if now_s - self._began_s >= self.WITHIN_S:
            left_out = self._lines - len(self._said)
            self._began_s, self._lines = now_s, 0
            self._said.clear()
            if left_out > 0:
                record.msg, record.args = f"{text} ({left_out} more were left out before)", ()
        self._lines += 1
        if text in self._said or len(self._said) >= self.LINES_MAX:
            return False
        self._said.add(text)
        return True


@dataclass(frozen=True)
class ClientRole:
    """What all clients of sources, or all of sinks, are made with.

    `tuned` are our defaults, `fixed` no user can change, and `refused` no user may give, for the reason that it says.
    `own` are the settings of this kind of client that people set, `acls` the rights that it needs.
    """

    logger: logging.Logger
    tuned: Mapping[str, str]
    fixed: Mapping[str, str | bool]
    refused: Mapping[str, str]
    own: frozenset[str]
    acls: str

    def check(self, settings: Settings) -> None:
        """Raise ConfigError, with the reason, for what would break the guarantee, and for what is no text.

        Asks no server. It quotes no value: any may be a password.
        """
        for name, value in settings.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise ConfigError(
                    "option-value",
                    f"Kafka settings are texts, and the value of {name!r} is a {type(value).__name__}: write it as str,"
                    " in quotes",
                )
            if reason := self.refused.get(name, JAVAS_OWN.get(name)):
                raise ConfigError("option-not-allowed", f"the Kafka setting {name!r} cannot be given: {reason}")

    def config(
        self, bootstrap_servers: str, settings: Settings, special: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """`special` are the settings of one client, such as its transactional id."""
        return {**self.tuned, **settings, **self.fixed, **(special or {}), "bootstrap.servers": bootstrap_servers}

    def admin_config(self, bootstrap_servers: str, settings: Settings) -> dict[str, Any]:
        """Without the settings that an admin client would warn about, as none of its own. Level 3 is errors."""
        known = {name: value for name, value in settings.items() if name not in self.own}
        return {"log_level": "3", **known, "bootstrap.servers": bootstrap_servers}

    @property
    def said(self) -> logging.Logger:
        """Takes librdkafka's own lines. Where nobody logs they go nowhere: what matters of them is raised."""
        said = self.logger.getChild("librdkafka")
        if not said.handlers:
            said.addHandler(logging.NullHandler())
            said.addFilter(_Seldom())
        return said

    def open(self, kind: Callable[[dict[str, Any]], Client], config: Mapping[str, Any]) -> Client:
        """A client, which logs where the others do. Raises ConfigError for a name or value that librdkafka refuses."""
        try:
            return kind({**config, "logger": self.said})
        except KafkaException as error:
            raise self.refusal(error.args[0].str()) from error

    def refusal(self, said: str) -> ConfigError:
        """The error for settings that librdkafka refuses, in its words."""
        name = said.split('"')[1] if said.count('"') >= 2 else ""
        hint = near(name, [*SECURITY, *self.own]) or "; the names are librdkafka's (its CONFIGURATION.md)"
        return ConfigError("kafka-setting-refused", f"Kafka client settings: {said}{hint}")

    def unreachable(
        self, what: str, bootstrap_servers: str, timeout_s: float, said: Sequence[KafkaError]
    ) -> OnefoldError:
        """The error for brokers that gave no answer, from what the client `said` of its connections."""
        return error_codes.unreachable(what, bootstrap_servers, timeout_s, said, self.acls)
