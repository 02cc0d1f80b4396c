"""What a Kafka sink's guarantee depends on, as the brokers are set up now: what `open` refuses (`checks`), and what
doctor says besides (`examine`). Nothing here writes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa

from onefold.clients.kafka.cluster import Cluster, cluster
from onefold.core.contract import Committable, SinkKind
from onefold.core.errors import ConfigError
from onefold.core.findings import Checks, Finding, Held, Level, tried
from onefold.core.invariants import NoLoss
from onefold.sinks.kafka.sink_options import KafkaSinkConfig
from onefold.sinks.kafka.topics import Topics, TopicState, ledger_faults
from onefold.sinks.kafka.transactional import txn_admin
from onefold.sinks.kafka.transactional.ledger import Ledger

_CAP_MS = 900_000  # brokers' default


def checks(settings: KafkaSinkConfig, topics: Topics, schema: pa.Schema | None) -> Checks[None]:
    """What `open` checks of the rows, the brokers and the sink's topic. Raises ConfigError, SchemaMismatch."""
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


_CLEANUP = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
_CLEANUP_MS = 10_000  # brokers' default, for those whose settings we may not see
_COSTS = (
    "It holds read_committed readers of its partitions back until the pipeline's next start (or, where a driver lives,"
    " its next sweep), at the latest until the brokers abort it, {:g} s after it began"
)


def examine(settings: KafkaSinkConfig, pipeline: str, deciding_s: float | None) -> Iterator[Finding]:
    topics = Topics(settings, pipeline)
    if settings.delivery == "transactional":
        kafka = cluster(*settings.cluster)
        yield from outage(settings.transaction_timeout_s, settings.outage_s, deciding_s)
        with suppress(ConfigError):  # brokers that are too old may have no list of what is open
            txn_admin.check_versions(kafka)
            yield from _open(kafka, settings, pipeline, topics.broker_settings(), deciding_s)
    target = topics.look_at_target()
    if target is not None:
        yield from _keeps(target)
        yield from _cleanup(target)
        if settings.delivery == "transactional":
            yield _held_back(topics, target)
    ledger = topics.look_at_ledger()
    if ledger is not None and not ledger_faults(ledger):
        yield from _keeps(ledger)


def held(settings: KafkaSinkConfig, pipeline: str) -> list[Held]:
    """The sink's transactions that are open, and say in the ledger topic which epoch they are of."""
    kafka, names = cluster(*settings.cluster), settings.names(pipeline)
    known = txn_admin.describe(kafka, txn_admin.list_ids(kafka, names.ids, "Ongoing"))
    if not known or Topics(settings, pipeline).look_at_ledger() is None:
        return []
    transactions = Ledger(settings, pipeline).transactions()
    found = []
    for name, transaction in known.items():
        begun = transactions.begun.get((transaction.handle.producer_id, transaction.handle.producer_epoch))
        generation = names.generation(name)
        if begun is not None and generation is not None:
            handle = str(transaction.handle)
            committable = Committable(settings.name, SinkKind.TWO_PHASE, handle, generation, begun.epoch, 0)
            age_s = time.time() - transaction.started_ms / 1000
            found.append(Held(committable, age_s, _COSTS.format(transaction.timeout_ms / 1000)))
    return found


def outage(timeout_s: float, outage_max_s: float, deciding_s: float | None) -> Iterator[Finding]:
    """How long driver or brokers may be away between an epoch's decision and its commit."""
    says = (
        f"an outage of {outage_max_s:g} s between an epoch's decision and its commit is survived in any case "
        f"(outage_max_s); whatever the outage, the brokers abort {timeout_s:g} s after a task's first row"
    )
    if deciding_s is None:
        yield Finding(Level.FINE, says)
        return
    left_s = timeout_s - deciding_s
    says += f". The slowest of the recent epochs was decided after {deciding_s:.3g} s"
    if left_s >= outage_max_s:
        yield Finding(Level.FINE, f"{says}, which leaves {int(left_s)} s: the longest outage that all of them survive")
    else:
        yield Finding(
            Level.CAUTION,
            f"{says}, which leaves less than outage_max_s: such an epoch runs again, and where they always take that "
            "long, again and again. Make epochs smaller, raise transaction_timeout_s, or lower outage_max_s",
        )


def _open(
    kafka: Cluster, settings: KafkaSinkConfig, pipeline: str, brokers: list[dict[str, str]], deciding_s: float | None
) -> Iterator[Finding]:
    cleanup = [int(config.get(_CLEANUP, _CLEANUP_MS)) for config in brokers]
    forgotten_s = settings.transaction_timeout_s + max(cleanup, default=_CLEANUP_MS) / 1000
    usual = "as long as an epoch runs" if deciding_s is None else f"up to {deciding_s:.3g} s in the recent epochs"
    yield Finding(
        Level.FINE,
        f"open transactions hold back other read_committed readers of the topic: {usual}; after a crash until the "
        f"pipeline is started again, or {forgotten_s:g} s where it is not",
    )
    found = txn_admin.describe(kafka, txn_admin.list_ids(kafka, settings.names(pipeline).ids, "Ongoing"))
    ages_s = [time.time() - transaction.started_ms / 1000 for transaction in found.values()]
    if not ages_s:
        yield Finding(Level.FINE, "no transaction of this sink is open now")
    elif max(ages_s) <= forgotten_s:
        says = f"open transactions of this sink: {len(ages_s)}, the oldest for {max(ages_s):.0f} s"
        yield Finding(
            Level.FINE, f"{says}. They are of an epoch that runs, or of a process that died: then start again"
        )
    else:
        yield Finding(
            Level.CAUTION,
            f"open transactions of this sink: {len(ages_s)}, the oldest for {max(ages_s):.0f} s, longer than its "
            "timeout: the brokers should have ended it. Start the pipeline: its recovery does",
        )


def _held_back(topics: Topics, target: TopicState) -> Finding:
    held = topics.held_back(target.name, target.partitions)
    if not held:
        return Finding(Level.FINE, f"no open transaction, of anybody, holds back readers of {target.name!r} now")
    return Finding(
        Level.FINE,
        f"read_committed readers of {target.name!r} are held back now, by {sum(held.values()):,} offsets in "
        f"{len(held)} of its {target.partitions} partitions",
    )


def _keeps(topic: TopicState) -> Iterator[Finding]:
    """Whether what brokers acknowledged of it outlives one of them."""
    is_unclean = topic.config.get("unclean.leader.election.enable") == "true"
    if not topic.config:
        yield Finding(
            Level.CAUTION,
            f"the settings of topic {topic.name!r} are not shown to us (DESCRIBE_CONFIGS on it): see yourself that it "
            "keeps what it acknowledged (min.insync.replicas from 2 on, no unclean leader election)",
        )
        return
    if is_unclean:
        yield Finding(
            Level.PROBLEM,
            f"topic {topic.name!r} has unclean.leader.election.enable=true: a broker that lacks what others "
            f"acknowledged may lead, and it is gone: {topic.alter('unclean.leader.election.enable', 'false')}",
            (NoLoss.name,),
        )
    if (why := topic.acknowledged_alone()) is not None:
        yield Finding(Level.PROBLEM, f"topic {topic.name!r} {why}", (NoLoss.name,))
    elif topic.in_sync < 2:
        yield Finding(
            Level.CAUTION,
            f"topic {topic.name!r} has {topic.replicas} replicas, min.insync.replicas={topic.in_sync}: what it "
            "acknowledged may be on one broker's disk alone. Where that matters: three replicas, two in sync",
        )
    elif not is_unclean:
        kept = f"{topic.replicas} replicas, min.insync.replicas={topic.in_sync}, no unclean leader election"
        yield Finding(Level.FINE, f"topic {topic.name!r} has {kept}: it keeps what it acknowledged")


def _cleanup(target: TopicState) -> Iterator[Finding]:
    if not target.config:
        return
    policy = target.config.get("cleanup.policy", "delete")
    hours = int(target.config.get("retention.ms", "-1")) / 3_600_000
    kept = f"{hours:,.4g} hours" if hours >= 0 else "for good"
    says = f"topic {target.name!r} has cleanup.policy={policy}"
    if "compact" in policy:
        yield Finding(
            Level.CAUTION, f"{says}: it keeps the last record of each key, and takes none without a key (a BadRecord)"
        )
    else:
        yield Finding(Level.FINE, f"{says}, and keeps records {kept} as far as time counts")
