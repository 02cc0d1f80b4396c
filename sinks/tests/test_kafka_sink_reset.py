"""What `onefold reset` makes of the brokers' answers. How they give them is tested with them."""

from __future__ import annotations

import pytest

from onefold.core.errors import ConfigError, InDoubt, OnefoldError, Retriable
from onefold.sinks.kafka.naming import Handle
from onefold.sinks.kafka.sink_options import KafkaSinkConfig
from onefold.sinks.kafka.sink_reset import KafkaReset
from onefold.sinks.kafka.topics import Topics
from onefold.sinks.kafka.transactional import txn_admin

HANDLE = Handle("onefold/p/t/1/0/0", 7, 0)


@pytest.mark.parametrize(
    ("said", "raised"),
    [(53, ConfigError), (90, Retriable), (-1, Retriable), (InDoubt("transaction-end-unanswered", "?"), InDoubt)],
)
def test_a_transaction_that_a_broker_did_not_abort_ends_the_reset_before_records_and_ledger_go(
    said: int | OnefoldError, raised: type[OnefoldError], monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []
    monkeypatch.setattr(KafkaReset, "_opened", lambda _: [HANDLE])
    monkeypatch.setattr(txn_admin, "end", lambda *_, **__: {HANDLE: said})
    monkeypatch.setattr(Topics, "empty", lambda _, topic: removed.append(topic))
    with pytest.raises(raised):
        KafkaReset(KafkaSinkConfig("t", bootstrap_servers="nowhere:9092"), "p", ("t",)).remove()
    assert removed == []
