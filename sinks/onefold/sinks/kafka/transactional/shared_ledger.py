"""Finds the ledgers of older pipelines, in the topic that all pipelines shared before each had its own."""

from __future__ import annotations

from onefold.clients.kafka.cluster import cluster
from onefold.core.errors import ConfigError
from onefold.sinks.kafka.config import KafkaSinkConfig
from onefold.sinks.kafka.naming import SHARED_LEDGER, Names
from onefold.sinks.kafka.topics import Topics
from onefold.sinks.kafka.transactional import txn_admin
from onefold.sinks.kafka.transactional.transaction_log import Record

__all__ = ["check_not_shared"]


def check_not_shared(settings: KafkaSinkConfig, pipeline: str, topics: Topics, is_there: bool) -> None:
    """Raise ConfigError where a sink would begin a ledger in its pipeline's own topic, and has one in the shared topic.

    `is_there`: whether the own topic is.
    Once the own topic has a ledger, the shared one is not read: others who write there could mislead the sink.
    """
    own, names = settings.ledger_topic(pipeline), settings.names(pipeline)
    if settings.ledger is not None or (is_there and _knows(settings, own, names)):
        return
    if not topics.may_read(SHARED_LEDGER):
        return
    if _knows(settings, SHARED_LEDGER, names):
        raise ConfigError(
            "ledger-shared-before",
            f"{settings.where(pipeline)} has its ledger in the topic {SHARED_LEDGER!r}, which pipelines shared before"
            f" each had its own, and there is none in {own!r}. Go on with ledger={SHARED_LEDGER!r}; or, for"
            " the pipeline's own topic, start under a new pipeline name with explicit starting_offsets, once this one"
            " has nothing left to finish",
        )


def _knows(settings: KafkaSinkConfig, topic: str, names: Names) -> bool:
    return any(
        isinstance(item, Record) and item.key.startswith((names.ids, names.notes))
        for items, _ in txn_admin.read_log(cluster(*settings.cluster), topic, 0)
        for item in items
    )
