"""KafkaSink: what a user names, and what travels to the executors."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from onefold.clients.exposure import of_kafka
from onefold.clients.options import constructed_from
from onefold.core.contract import Committer, Guarantee, SinkKind, SinkWriter, TaskId, Upsert
from onefold.core.findings import Checks, Finding, Held, Target, passed
from onefold.sinks.kafka import guarantee_checks
from onefold.sinks.kafka.keyed import KEYED, KeyedWriter, keyed_committer
from onefold.sinks.kafka.sink_options import KafkaSinkConfig
from onefold.sinks.kafka.topics import Topics
from onefold.sinks.kafka.transactional.transactional_committer import TransactionalCommitter
from onefold.sinks.kafka.transactional.transactional_writer import TransactionalWriter
from onefold.sinks.sink_base import SettledSink
from onefold.sinks.sink_writer import opened


class KafkaSink(SettledSink[KafkaSinkConfig]):
    """Writes rows into a Kafka topic, which must be there.

    `delivery` is
    - `transactional`: every task leaves an open transaction, and the driver commits those that were decided; readers
      with `isolation.level=read_committed` see each row once, a task's rows at once;
    - `keyed`: every record carries a unique id, and shows as it is written, maybe repeatedly; readers drop what they
      have seen (`stream.deduplicate`). `id` names the column with the ids, or several of which they are made:
      `id=("topic", "partition", "offset")` gives `orders/3:1700`. The id is the record's key, or with `id_header="id"`
      that header. This needs no transactions, neither of the brokers nor of the readers. Where `id` names several
      columns, the pipeline brings the rows of each source of ids into one task, in the order of their numbers.

    `repartition=False`: the rows are written in the tasks, and in the order, in which they come, whatever sinks beside
    this one need; for `keyed`, where a source's rows are in one task, in order, already.

    `format="json"` makes each row one JSON object, of all columns but those in `headers`. `key` names the column whose
    text (or bytes) is the record's key, or several, whose values become one JSON object; a key's records go to the
    partition where Java's default partitioner sends them. `headers` names columns that become headers. With
    `format="raw"` the rows bring `value` (binary or string) and, if they have them, `key`, `headers`
    (array<struct<key, value>>), `partition` and `timestamp`, as Spark's own Kafka sink takes them; the columns that
    `headers` names then come behind the row's own headers.

    `transactional_id_prefix`: every transactional id begins with it and a slash, so that an ACL can name them.
    `ledger` names the topic where the sink keeps its ledger, `onefold_progress-PIPELINE` where it is not named. The
    sink makes it, compacted. `transaction_timeout_s` is how long a transaction may stay open, at most the brokers'
    transaction.max.timeout.ms, and `outage_max_s`, by default a third of it, how much of that must be left when an
    epoch is decided: an outage of that length between the decision and its commit is survived. `client_config` has
    librdkafka's settings (security, compression, batching); those that the guarantee rests on are refused, with the
    reason. `timeout_s` bounds each wait for the brokers.

    Raises ConfigError for settings that make no sense.
    """

    @constructed_from(KafkaSinkConfig)
    def __init__(self, settings: KafkaSinkConfig) -> None:
        self._settings = settings
        self._schema: pa.Schema | None = None

    def __repr__(self) -> str:
        return f"KafkaSink(topic={self._settings.topic!r}, name={self.name!r}, delivery={self._settings.delivery!r})"

    def guarantee(self) -> Guarantee:
        if self._settings.delivery == "keyed":
            return KEYED
        timeout_s, outage_s = self._settings.transaction_timeout_s, self._settings.outage_s
        return Guarantee(
            "transactional",
            SinkKind.TWO_PHASE,
            False,
            (
                "readers set isolation.level=read_committed, and see an epoch task by task, each task's rows at once",
                "both topics keep what they acknowledged (min.insync.replicas from 2 on, no unclean leader election)",
                f"an outage between an epoch's decision and its commit lasts {outage_s:g} s at most, and the writers "
                f"of an epoch take no longer than {timeout_s - outage_s:g} s: after {timeout_s:g} s the brokers abort",
                "while a task's transaction is open, read_committed readers of its partitions wait for it: as long as "
                f"the epoch runs, and up to {timeout_s + 10:g} s after a crash that no restart follows",
                "the clocks of driver and brokers agree to within a few seconds",
            ),
            prepared_s=timeout_s,
        )

    def checks(self, pipeline: str, schema: pa.Schema | None) -> Checks[Committer | None]:
        topics = self._topics(pipeline)
        ledger = yield from topics.check_ledger()
        yield from guarantee_checks.checks(self._settings, topics, schema)
        if ledger is not None:
            return self._committer(pipeline)
        name = self._settings.ledger_topic(pipeline)
        says, where = f"the ledger topic {name!r} is made by the first start", self._settings.bootstrap_servers
        yield Finding.making(says, f"Kafka at {where}", [topics.creating_ledger()])
        return None

    def examine(self, pipeline: str, deciding_s: float | None) -> Iterator[Finding]:
        return guarantee_checks.examine(self._settings, pipeline, deciding_s)

    def held(self, pipeline: str) -> list[Held]:
        return guarantee_checks.held(self._settings, pipeline) if self._settings.delivery == "transactional" else []

    def target_now(self, pipeline: str) -> Target:
        topic_id = self._topics(pipeline).target_id()
        return Target(f"topic {self._settings.topic}", topic_id is not None, topic_id or "")

    def is_empty(self, pipeline: str) -> bool:  # noqa: ARG002 - the protocol's
        """Nobody can tell: a topic forgets its records by itself."""
        return False

    def exposure(self) -> str:
        return of_kafka(self._settings.bootstrap_servers, self._settings.client_config)

    def recover(self, pipeline: str) -> Committer:
        topics = self._topics(pipeline)
        topics.make_ledger_topic()
        committer = self._committer(pipeline)
        if (row := committer.ledger()) is None or row.epoch == 0:  # later, a topic that is missing is a loss
            topics.check_target()
        return committer

    def open(self, pipeline: str, schema: pa.Schema) -> Committer:
        topics = self._topics(pipeline)
        passed(guarantee_checks.checks(self._settings, topics, schema))
        topics.make_ledger_topic()
        if self._settings.delivery == "transactional":
            topics.try_transactions(self._settings.names(pipeline).probe)
        self._schema = schema
        return self._committer(pipeline)

    def partition_by(self) -> tuple[str, ...]:
        """Readers drop a source's id that comes behind a higher one: so one task has all of a source's rows."""
        return self._settings.ids.source if self._settings.repartition else ()

    def order_by(self) -> tuple[str, ...]:
        return self._settings.ids.number if self._settings.repartition else ()

    def in_place(self) -> bool:
        """Of ids in one column only the user knows which of them have an order."""
        return not self._settings.repartition or (self._settings.delivery == "keyed" and not self._settings.ids.source)

    def identity(self) -> str:
        """By its id, in the partition that its key chose, readers know a record that is written again."""
        told = self._settings
        return repr((told.topic, told.encoding, told.ids)) if told.delivery == "keyed" else ""

    def upsert(self) -> Upsert | None:
        """Of a key's records the last one counts, and a compacted topic keeps it. Of an id's, the first one."""
        told = self._settings
        key = ("key",) if told.format == "raw" else tuple(told.key)
        return Upsert(key) if key and told.delivery == "transactional" else None

    def writer(self, task: TaskId) -> SinkWriter:
        kind = KeyedWriter if self._settings.delivery == "keyed" else TransactionalWriter
        return kind(self._settings, opened(self._schema, self.name), task)

    def _committer(self, pipeline: str) -> Committer:
        make = keyed_committer if self._settings.delivery == "keyed" else TransactionalCommitter
        return make(self._settings, pipeline)

    def _topics(self, pipeline: str) -> Topics:
        self._settings.check_apart(self._settings.ledger_topic(pipeline))
        return Topics(self._settings, pipeline)
