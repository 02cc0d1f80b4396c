"""Settings that make no sense are refused at once, and what HBase says is told apart by what it means."""

from __future__ import annotations

import pickle
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from onefold.core.errors import BadRecord, ConfigError, OnefoldError, Retriable
from onefold.hbase import HBaseSettings, HBaseTable
from onefold.hbase.asking import insist
from onefold.hbase.errors import refused
from onefold.hbase.settings import Address

GOOD = HBaseSettings("thrift1:9090, [::1]:9091,thrift1:9090")


def test_servers_are_addresses_each_once_and_all_of_it_pickles() -> None:
    assert GOOD.addresses() == (Address("thrift1", 9090), Address("::1", 9091))
    table = pickle.loads(pickle.dumps(HBaseTable(GOOD, "ns:orders")))
    assert (table.settings, table.name) == (GOOD, "ns:orders")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"servers": "thrift1"}, "host:port"),
        ({"servers": ""}, "host:port"),
        ({"transport": "http"}, "buffered"),
        ({"protocol": "json"}, "compact"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"patience_s": -1}, "patience_s"),
        ({"connections": 0}, "connections"),
        ({"frame_bytes_max": 1000}, "frame_bytes_max"),
        ({"transport": "framed", "kerberos_service": "hbase"}, "kerberos_service"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_its_name(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        replace(GOOD, **wrong)


@pytest.mark.parametrize("name", ["", "a b", "a:b:c", ":t", "-t", "t/u"])
def test_what_no_table_can_be_called_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="namespace:table"):
        HBaseTable(GOOD, name)


@pytest.mark.parametrize(
    ("text", "can_retry", "means"),
    [
        ("Failed 3 actions: orders: 3 times, servers with issues: null", True, ConfigError),
        ("orders", False, ConfigError),
        ("Failed 1 action: org...NoSuchColumnFamilyException: Column family zz", True, ConfigError),
        ("org...AccessDeniedException: Insufficient permissions", False, ConfigError),
        ("Failed 1 action: NotServingRegionException: 1 time, servers with issues: h,1,2", True, Retriable),
        ("Failed 1 action: org...DoNotRetryIOException: odd", True, ConfigError),
        ("Failed 1 action: DoNotRetryIOException: Cell with size 11 exceeds limit of 10 bytes", True, BadRecord),
        ("Internal error processing putMultiple", None, Retriable),
        ("Failed 9 actions: Backoff time of 200ms would exceed operation timeout", True, Retriable),
        ("Call to address=localhost failed: Connection refused", True, Retriable),
    ],
)
def test_what_hbase_says_is_mended_waited_for_or_the_rows(
    text: str, can_retry: bool | None, means: type[OnefoldError]
) -> None:
    """What a real one says, where nobody forbids us anything, is in integration-tests/test_hbase_table.py."""
    error = refused(SimpleNamespace(message=text, canRetry=can_retry), "orders", "thrift1:9090", "writing")
    assert type(error) is means
    assert "'orders'" in str(error) and "thrift1:9090" in str(error)


def test_asking_again_ends_after_a_while_and_never_happens_for_what_cannot_be_cured() -> None:
    asked: list[float] = []

    def ask() -> str:
        asked.append(time.monotonic())
        if len(asked) < 3:
            raise Retriable("busy")
        return "answer"

    assert insist(ask, 10) == "answer"
    asked.clear()
    with pytest.raises(Retriable, match=r"busy \(asked 2 times within 0.01 s\)"):
        insist(lambda: ask() and None, 0.01)
    asked.clear()

    def refuse() -> None:
        asked.append(0)
        raise ConfigError("no")

    with pytest.raises(ConfigError):
        insist(refuse, 10)
    assert len(asked) == 1
