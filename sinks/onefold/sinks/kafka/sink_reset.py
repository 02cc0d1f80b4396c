"""Removes what Kafka holds of one pipeline: its ledger topic, its open transactions, and records on request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from onefold.clients.kafka.cluster import Cluster, cluster
from onefold.core.errors import ConfigError, OnefoldError
from onefold.sinks.kafka.naming import Handle
from onefold.sinks.kafka.sink_options import KafkaSinkConfig
from onefold.sinks.kafka.topics import Topics
from onefold.sinks.kafka.transactional import txn_admin
from onefold.sinks.kafka.transactional.transaction_log import LogRecord
from onefold.sinks.name_parts import part


@dataclass(frozen=True, slots=True)
class KafkaReset:
    """All sinks of the pipeline whose ledger is in one topic. `topics` lose their records, too."""

    settings: KafkaSinkConfig  # of any of the sinks
    pipeline: str
    topics: tuple[str, ...]

    @property
    def server(self) -> str:
        return self.settings.bootstrap_servers

    def found(self) -> Iterator[str]:
        """What there is of it, each for a line of a plan. Changes nothing. Raises ConfigError for a shared ledger."""
        if handles := self._opened():
            yield f"open transactions, aborted: {', '.join(each.transactional_id for each in handles)}"
        if keys := self._ledger_keys():
            yield f"topic {self._ledger}: the ledger, as a whole ({keys.total()} records)"

    def targets(self) -> dict[str, str | None]:
        """Each topic that is named with its line of a plan; None where there is no such topic. Raises ConfigError for
        one that is compacted: brokers refuse to delete its records."""
        return {topic: self._records(topic) for topic in self.topics}

    def generation(self) -> int | None:
        """Transactional ids are fenced by Kafka itself: the ledger's generation is not needed."""
        return 0 if self._ledger_keys() else None

    def remove(self) -> None:
        """The records first: no start begins anew beside them."""
        self._kafka.when_ready(self._abort)
        for topic in self.topics:
            self._admin().empty(topic)
        if self._ledger_keys():
            self._admin().drop_ledger()

    def close(self) -> None:
        """Does nothing: connections belong to the process."""

    @property
    def _kafka(self) -> Cluster:
        return cluster(*self.settings.cluster)

    @property
    def _ledger(self) -> str:
        return self.settings.ledger_topic(self.pipeline)

    @property
    def _mine(self) -> str:
        """What the transactional ids and the ledger keys of all sinks of the pipeline begin with."""
        return f"{self.settings.transactional_id_prefix}/{part(self.pipeline)}/"

    def _admin(self) -> Topics:
        return Topics(self.settings, self.pipeline)

    def _records(self, topic: str) -> str | None:
        if (state := self._admin().look(topic)) is None:
            return None
        policy = state.config.get("cleanup.policy", "delete")
        if "delete" not in policy:
            raise ConfigError(
                "topic-compacted",
                f"topic {topic!r} has cleanup.policy={policy}, and Kafka does not delete the records of such a topic."
                " Nothing was removed: leave --rows out, and make the topic anew by hand once the rest is reset",
            )
        return f"topic {topic}: all of its records"

    def _abort(self) -> None:
        """Aborts the open transactions. Raises what a broker refuses; the same again aborts the rest."""
        for handle, said in txn_admin.end(self._kafka, self._opened(), commit=False).items():
            if isinstance(said, OnefoldError):
                raise said
            self._kafka.check(said, f"aborting transaction {handle}")

    def _opened(self) -> list[Handle]:
        """None where the brokers are too old for the transactions of this sink."""
        try:
            txn_admin.check_versions(self._kafka)
        except ConfigError:
            return []
        names = txn_admin.list_ids(self._kafka, self._mine, "Ongoing")
        return [each.handle for each in txn_admin.describe(self._kafka, names).values()] if names else []

    def _ledger_keys(self) -> Counter[str]:
        """Raises ConfigError where other pipelines keep their ledgers in that topic: it cannot be deleted."""
        if not self._admin().is_there(self._ledger):
            return Counter()
        keys = Counter(
            item.key
            for items, _ in txn_admin.read_log(self._kafka, self._ledger, 0)
            for item in items
            if isinstance(item, LogRecord)
        )
        others = sorted(key for key in keys if not key.startswith(self._mine))
        if others:
            raise ConfigError(
                "ledger-shared",
                f"the topic {self._ledger!r} also keeps what pipeline {self.pipeline!r} did not write (under"
                f" {others[0]!r}), so it cannot be deleted, and nothing was removed. Go on under a new pipeline name",
            )
        return keys
