"""Settings that make no sense are refused at once, and what HBase says is told apart by what it means."""

from __future__ import annotations

import pickle
import socket
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from harness.errors import raises

from onefold.clients.hbase import HBaseSettings, HBaseTable
from onefold.clients.hbase.client_settings import Address
from onefold.clients.hbase.pool import Pool
from onefold.clients.hbase.thrift_connection import ThriftConnection
from onefold.clients.hbase.thrift_errors import refused
from onefold.core.errors import BadRecord, ConfigError, OnefoldError, OutOfResources, Retriable

GOOD = HBaseSettings("thrift1:9090, [::1]:9091,thrift1:9090")


def test_servers_are_addresses_each_once_and_all_of_it_pickles() -> None:
    assert GOOD.addresses() == (Address("thrift1", 9090), Address("::1", 9091))
    table = pickle.loads(pickle.dumps(HBaseTable(GOOD, "ns:orders")))
    assert (table.settings, table.name) == (GOOD, "ns:orders")


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"servers": "thrift1"}, "option-value"),
        ({"servers": ""}, "option-value"),
        ({"transport": "http"}, "option-value"),
        ({"protocol": "json"}, "option-value"),
        ({"timeout_s": 0}, "option-value"),
        ({"connections": 0}, "option-value"),
        ({"frame_bytes_max": 1000}, "option-value"),
        ({"transport": "framed", "kerberos_service": "hbase"}, "options-conflict"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_its_name(wrong: dict[str, Any], code: str) -> None:
    with raises(ConfigError, code):
        replace(GOOD, **wrong)


@pytest.mark.parametrize("name", ["", "a b", "a:b:c", ":t", "-t", "t/u"])
def test_what_no_table_can_be_called_is_refused(name: str) -> None:
    with raises(ConfigError, "option-value"):
        HBaseTable(GOOD, name)


@pytest.mark.parametrize(
    ("text", "can_retry", "means"),
    [
        ("Failed 3 actions: orders: 3 times, servers with issues: null", True, ConfigError),
        ("orders", False, ConfigError),
        ("Failed 1 action: org...NoSuchColumnFamilyException: Column family zz", True, ConfigError),
        ("org...AccessDeniedException: Insufficient permissions", False, ConfigError),
        ("Failed 1 action: NotServingRegionException: 1 time, servers with issues: h,1,2", True, OutOfResources),
        ("Failed 1 action: org...DoNotRetryIOException: odd", True, ConfigError),
        ("Failed 1 action: DoNotRetryIOException: Cell with size 11 exceeds limit of 10 bytes", True, BadRecord),
        ("Internal error processing putMultiple", None, Retriable),
        ("Failed 9 actions: Backoff time of 200ms would exceed operation timeout", True, OutOfResources),
        ("Call to address=localhost failed: Connection refused", True, OutOfResources),
        ("Zookeeper GET could not be completed in 10000 ms", False, OutOfResources),  # of a real one that was killed
        ("No server address listed in hbase:meta for region t,,1.a. containing row k", False, OutOfResources),
        ("Unable to find region for k in t after 4 tries.", False, OutOfResources),
        ("Operation timeout exceeded during resolution of region locations", False, OutOfResources),
        ("org...UnknownScannerException: Unknown scanner '7'", False, OutOfResources),
        ("Invalid method name: 'putMultiple'", None, ConfigError),  # of Thrift1
        (None, False, OutOfResources),  # StoppedRpcClientException: the Thrift server is being stopped
        ("org...FailedSanityCheckException: odd", False, ConfigError),
    ],
)
def test_what_hbase_says_is_mended_waited_for_or_the_rows(
    text: str | None, can_retry: bool | None, means: type[OnefoldError]
) -> None:
    """What a real one says, where nobody forbids us anything, is in integration-tests/hbase/test_table.py."""
    error = refused(SimpleNamespace(message=text, canRetry=can_retry), "orders", "thrift1:9090", "writing")
    assert type(error) is means
    assert "'orders'" in str(error) and "thrift1:9090" in str(error)


def test_once_one_request_has_failed_those_that_have_not_begun_do_not_wait_as_long_again() -> None:
    begun: list[int] = []

    def task(number: int) -> None:
        begun.append(number)
        time.sleep(0.02)
        raise Retriable("database-unavailable", f"no. {number}")

    outcomes = Pool(replace(GOOD, connections=1)).each([partial(task, number) for number in range(40)])
    assert len(outcomes) == 40 and all(isinstance(outcome, Retriable) for outcome in outcomes)
    assert len(begun) <= 2, "those that had a connection, one to each of two servers"


def test_a_frame_is_refused_before_it_is_sent_with_the_head_that_it_has() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        told = HBaseSettings(f"127.0.0.1:{port}", "framed", timeout_s=0.2, frame_bytes_max=64 << 10)
        with closing(ThriftConnection(Address("127.0.0.1", port), told)) as connection:
            with raises(ConfigError, "hbase-request-too-large"):
                connection.ask_all("putMultiple", [b"x" * (64 << 10)])
            assert not connection.is_dead, "nothing was sent"


def test_a_server_that_never_answers_may_speak_something_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        told = HBaseSettings(f"127.0.0.1:{port}", "framed", timeout_s=0.1, connections=1)
        with raises(Retriable, "hbase-unanswered"):
            HBaseTable(told, "t").regions()
