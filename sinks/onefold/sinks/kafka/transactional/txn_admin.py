"""Ends transactions that other processes left open, and lists the open ones: librdkafka has no calls for this.

EndTxn goes out as version 5 (KIP-890), or not at all: a late repeat of an older version, sent while the same producer
is in its next transaction, commits that one half-written. Every request may be repeated, by any process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from kafka.protocol.admin import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kafka.protocol.consumer import FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.producer import EndTxnRequest, EndTxnResponse
from kafka.record import MemoryRecords

from onefold.clients.kafka.cluster import Cluster, NotReady
from onefold.clients.kafka.error_codes import MOVED
from onefold.core.checks import require
from onefold.core.errors import ConfigError, DataLoss, OnefoldError
from onefold.sinks.kafka.naming import Handle
from onefold.sinks.kafka.transactional.transaction_log import LogRecord, Marker

END_TXN_VERSION = 5
FETCH_BYTES_MAX = 4 << 20

OK = 0
BUSY = 51  # CONCURRENT_TRANSACTIONS: the markers of its end are being written
REFUSED = frozenset({48, 49, 90})  # INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED
_OUT_OF_RANGE, _NOT_FOUND = 1, 105
_LATEST = -1


@dataclass(frozen=True, slots=True)
class TopicTransaction:
    """What the coordinator says of a transactional id. `state` is Kafka's: Empty, Ongoing, PrepareCommit, ..."""

    handle: Handle
    state: str
    started_ms: int
    timeout_ms: int


def check_versions(cluster: Cluster) -> int:
    """The brokers' transaction.version. Raises ConfigError unless they end transactions in the way that makes late
    repeats harmless."""
    connection = cluster.any()
    level = int(connection.features.get("transaction.version", 0))
    if level < 2 or not connection.has(EndTxnRequest, END_TXN_VERSION):
        raise ConfigError(
            "transaction-version-too-low",
            f"Kafka at {cluster.bootstrap_servers} cannot end transactions safely from another process: "
            "delivery='transactional' needs brokers from 4.0 on with the feature transaction.version=2 (it is "
            f"{level}). Upgrade, then `kafka-features.sh upgrade --feature transaction.version=2`; until then use "
            "delivery='keyed'",
        )
    return level


def describe(cluster: Cluster, ids: Collection[str]) -> dict[str, TopicTransaction]:
    """What the coordinators know of these ids; those they don't know are left out."""
    return cluster.when_ready(lambda: _describe(cluster, ids))


def _describe(cluster: Cluster, ids: Collection[str]) -> dict[str, TopicTransaction]:
    found: dict[str, TopicTransaction] = {}
    for broker, theirs in cluster.by_coordinator(ids).items():
        request = DescribeTransactionsRequest(transactional_ids=theirs)
        answer = cluster.ask(broker, request, DescribeTransactionsResponse, 0)
        for said in answer.transaction_states:
            name = said.transactional_id
            if said.error_code == _NOT_FOUND:
                continue
            cluster.check(said.error_code, f"transactional id {name!r}")
            handle = Handle(name, said.producer_id, said.producer_epoch)
            started_ms, timeout_ms = said.transaction_start_time_ms, said.transaction_timeout_ms
            found[name] = TopicTransaction(handle, said.transaction_state, started_ms, timeout_ms)
    return found


def list_ids(cluster: Cluster, prefix: str, *states: str) -> list[str]:
    """The transactional ids with that prefix whose transaction is in one of these states, on all brokers."""
    return cluster.when_ready(lambda: _list_ids(cluster, prefix, *states))


def _list_ids(cluster: Cluster, prefix: str, *states: str) -> list[str]:
    found: set[str] = set()
    for broker in cluster.brokers():
        request = ListTransactionsRequest(state_filters=list(states), producer_id_filters=[])
        answer = cluster.ask(broker, request, ListTransactionsResponse, 0)
        cluster.check(answer.error_code, f"the list of transactions of broker {broker}")
        found |= {said.transactional_id for said in answer.transaction_states}
    return sorted(name for name in found if name.startswith(prefix))


def end(cluster: Cluster, handles: Sequence[Handle], commit: bool) -> dict[Handle, int | OnefoldError]:
    """Commit or abort each; what the coordinator said of it, as Kafka's error code, or why it said nothing."""
    by_id = {handle.transactional_id: handle for handle in handles}
    require(len(by_id) == len(handles), "an id has one transaction at a time")
    said: dict[Handle, int | OnefoldError] = {}
    for broker, ids in cluster.by_coordinator(by_id).items():
        theirs = [by_id[name] for name in ids]
        requests = [
            EndTxnRequest(
                transactional_id=handle.transactional_id,
                producer_id=handle.producer_id,
                producer_epoch=handle.producer_epoch,
                committed=commit,
            )
            for handle in theirs
        ]
        try:
            answers = cluster.ask_all(broker, requests, EndTxnResponse, END_TXN_VERSION)
        except ConfigError:
            raise
        except OnefoldError as error:
            said |= dict.fromkeys(theirs, error)
            continue
        for handle, answer in zip(theirs, answers, strict=True):
            said[handle] = answer.error_code
            if answer.error_code in MOVED:
                cluster.forget(handle.transactional_id)
    return said


def read_log(cluster: Cluster, topic: str, offset: int) -> Iterator[tuple[list[LogRecord | Marker], int]]:
    """Partition 0 from `offset` to its end as of now: parts of it, each with the offset after it. Open, committed and
    aborted records are in it alike."""
    end_offset = cluster.when_ready(lambda: _end_of(cluster, topic))
    while True:
        partition = FetchRequest.FetchTopic.FetchPartition(
            partition=0, fetch_offset=offset, partition_max_bytes=FETCH_BYTES_MAX
        )
        wanted = FetchRequest.FetchTopic(topic=topic, partitions=[partition])
        request = FetchRequest(max_bytes=FETCH_BYTES_MAX, session_epoch=-1, topics=[wanted])
        found = cluster.when_ready(lambda request=request: _fetched(cluster, topic, request, end_offset))  # type: ignore[misc]
        if found is None:
            raise DataLoss(
                "ledger-topic-cut",
                f"topic {topic!r} of {cluster.bootstrap_servers} has nothing at offset {offset}, where the sink's "
                "book-keeping goes on: it was made anew, cut, or records of it were deleted. Restore it; or, where the "
                "destination is right, use another ledger topic under a new pipeline name",
            )
        items, after = found
        before, offset = offset, offset if after is None else after
        yield items, offset
        if offset >= end_offset or offset <= before:  # what is left was emptied by compaction
            return


def _end_of(cluster: Cluster, topic: str) -> int:
    """Asked for by itself, since a leader that was elected a moment ago says so (KIP-207) as long as it doesn't know
    how much is acknowledged; a fetch shows less then, and says nothing."""
    partition = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
        partition_index=0, current_leader_epoch=-1, timestamp=_LATEST
    )
    wanted = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[partition])
    request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[wanted])
    found = cluster.ask(cluster.leader(topic), request, ListOffsetsResponse, 5).topics[0].partitions[0]
    cluster.check(found.error_code, f"topic {topic!r}")
    return int(found.offset)


def _fetched(
    cluster: Cluster, topic: str, request: FetchRequest, end_offset: int
) -> tuple[list[LogRecord | Marker], int | None] | None:
    """The records and the offset after them, None where there are none; None where the topic has not that offset."""
    answer = cluster.ask(cluster.leader(topic), request, FetchResponse, 12)
    cluster.check(answer.error_code, f"topic {topic!r}")
    if not answer.responses:
        raise NotReady(
            "kafka-not-ready",
            f"topic {topic!r}: Kafka at {cluster.bootstrap_servers} holds its answer back, for a quota",
        )
    found = answer.responses[0].partitions[0]
    if found.error_code == _OUT_OF_RANGE:
        return None
    cluster.check(found.error_code, f"topic {topic!r}")
    if found.high_watermark < end_offset:
        raise NotReady("kafka-not-ready", f"topic {topic!r}: its new leader doesn't know yet how far it goes")
    items: list[LogRecord | Marker] = []
    after: int | None = None
    for batch in MemoryRecords(bytes(found.records or b"")):
        if batch.is_control_batch:
            items += [Marker(batch.producer_id, record.commit) for record in batch]
        else:
            producer = batch.producer_id, batch.producer_epoch
            # Others may have written under any key.
            items += [
                LogRecord(*producer, (r.key or b"").decode(errors="replace"), r.value, batch.is_transactional)
                for r in batch
            ]
        after = batch.next_offset
    return items, after
