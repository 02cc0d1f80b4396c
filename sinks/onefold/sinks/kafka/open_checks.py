"""What `open` checks of the rows, the brokers and the sink's topic. It writes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from onefold.clients.kafka.cluster import cluster
from onefold.core.errors import ConfigError
from onefold.core.findings import Checks, Finding, Level, tried
from onefold.sinks.kafka.sink_options import KafkaSinkConfig
from onefold.sinks.kafka.topics import Topics
from onefold.sinks.kafka.transactional import txn_admin

__all__ = ["checks"]

_CAP_MS = 900_000  # brokers' default


def checks(settings: KafkaSinkConfig, topics: Topics, schema: pa.Schema | None) -> Checks[None]:
    """Raises ConfigError, SchemaMismatch."""
    if schema is None:
        says = "the rows are not known here: whether they can be records of the topic is checked at the start"
        yield Finding(Level.UNCHECKED, says)
    else:
        yield from tried(lambda: _check_rows(settings, schema))
    if settings.delivery == "transactional":
        yield from _transactions(settings, topics)
    yield from tried(topics.check_target)


def _check_rows(settings: KafkaSinkConfig, schema: pa.Schema) -> None:
    settings.encoding.check(schema)
    if settings.delivery == "keyed":
        settings.ids.check(settings.encoding, schema)


def _transactions(settings: KafkaSinkConfig, topics: Topics) -> Iterator[Finding]:
    level = txn_admin.check_versions(cluster(*settings.cluster))
    yield Finding(Level.FINE, f"the brokers' transaction.version is {level}: late repeats of a commit are harmless")
    brokers = topics.broker_settings()
    timeout_s, prefix = settings.transaction_timeout_s, settings.transactional_id_prefix
    if not brokers:
        yield Finding(
            Level.UNCHECKED,
            f"the brokers don't show their settings to us (DESCRIBE_CONFIGS on the cluster): whether they allow "
            f"transaction_timeout_s={timeout_s:g} shows when the sink is opened",
        )
    else:
        cap_s = min(int(config.get("transaction.max.timeout.ms", _CAP_MS)) for config in brokers) / 1000
        yield _timeout(timeout_s, cap_s)
    if not brokers or any(config.get("authorizer.class.name") for config in brokers):
        yield Finding(
            Level.UNCHECKED,
            f"whether the sink's principal may use transactional ids that begin with {prefix!r} is tried when the sink "
            "is opened",
        )


def _timeout(timeout_s: float, cap_s: float) -> Finding:
    if timeout_s > cap_s:
        return Finding.of(
            ConfigError(
                "transaction-timeout-too-long",
                f"transaction_timeout_s={timeout_s:g} is above the brokers' transaction.max.timeout.ms ({cap_s:g} s): "
                "the sink cannot be opened. Lower the one, or raise the other",
            )
        )
    if timeout_s == cap_s:
        return Finding(Level.FINE, f"transaction_timeout_s={timeout_s:g} is all that the brokers allow")
    return Finding(
        Level.FINE, f"transaction_timeout_s={timeout_s:g}; the brokers (transaction.max.timeout.ms) allow {cap_s:g}"
    )
