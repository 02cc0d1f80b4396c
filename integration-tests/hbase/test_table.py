"""An HBase table through Thrift2, on real servers: what goes in comes out, whatever happens to a connection."""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from itertools import repeat
from typing import Any

import pyarrow as pa
import pytest
from harness.errors import raises
from harness.support import host_and_port
from thriftpy2.protocol.cybin import TCyBinaryProtocol
from thriftpy2.thrift import TClient
from thriftpy2.transport import TCyBufferedTransport, TSocket

from onefold.clients.answers import Unanswered
from onefold.clients.hbase import Cells, ColumnFamily, HBaseSettings, HBaseTable, compact_protocol
from onefold.clients.hbase.compact_protocol import SERVICE, thrift
from onefold.clients.hbase.pool import pool
from onefold.clients.hbase.table_admin import create, describe, drop, ensure
from onefold.clients.hbase.thrift_connection import ThriftConnection
from onefold.core.errors import BadRecord, ConfigError, InDoubt, Retriable

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("hbase")]

F, Q, R = b"f", b"q", b"r"


def binary(*values: bytes | None) -> pa.BinaryArray:
    return pa.array(values, pa.binary())


def cells(*values: bytes | None, qualifier: bytes = Q) -> Cells:
    return Cells(F, qualifier, binary(*values))


@pytest.fixture
def settings(hbase_server: Any) -> HBaseSettings:
    return HBaseSettings(hbase_server.servers, timeout_s=20.0)


@pytest.fixture
def table(settings: HBaseSettings) -> Iterator[HBaseTable]:
    name = f"t{uuid.uuid4().hex[:12]}"
    create(settings, name, [ColumnFamily(F, versions_max=2)], [b"r5"])
    yield HBaseTable(settings, name)
    drop(settings, name)


@pytest.fixture(scope="module")
def framed(hbase_server: Any) -> Iterator[HBaseSettings]:
    """A Thrift server of the other kind: framed and compact."""
    options = {"hbase.regionserver.thrift.framed": "true", "hbase.regionserver.thrift.compact": "true"}
    with hbase_server.another_thrift("hbase-framed", options) as server:
        yield HBaseSettings(":".join(map(str, host_and_port(server))), "framed", "compact", timeout_s=20.0)


@contextmanager
def paused(server: Any) -> Iterator[None]:
    server.thrift.pause()
    try:
        yield
    finally:
        server.thrift.resume()


KEYS = [b"row%02d" % number for number in range(20)]


def _own(key: bytes) -> bytes:
    return b"the value of " + key


def _asked_naively(table: HBaseTable, server: Any) -> list[bytes]:
    """As a pool of one connection does that takes back what it gave out: the wrong answers."""
    naive = TSocket(*host_and_port(server), socket_timeout=300)
    transport = TCyBufferedTransport(naive)
    transport.open()
    rested: queue.SimpleQueue[Any] = queue.SimpleQueue()
    rested.put(TClient(SERVICE, TCyBinaryProtocol(transport)))

    def get(key: bytes) -> bytes:
        client = rested.get()
        try:
            (row,) = client.getMultiple(table.name.encode(), [thrift.TGet(key, [thrift.TColumn(F, Q)])])
            return bytes(row.columnValues[0].value)
        finally:
            rested.put(client)

    with closing(transport):
        with paused(server), pytest.raises(TimeoutError):
            get(KEYS[0])
        naive.sock.settimeout(20.0)
        return [found for key in KEYS[1:] if (found := get(key)) != _own(key)]


@pytest.mark.slow
def test_a_naive_pool_gives_other_rows_data_after_a_timeout_and_ours_never_does(
    table: HBaseTable, hbase_server: Any
) -> None:
    table.put(binary(*KEYS), [cells(*map(_own, KEYS))], 1)
    assert _asked_naively(table, hbase_server), "the danger is gone: what is this pool for?"

    ours = HBaseTable(replace(table.settings, timeout_s=1.5, connections=1), table.name)
    assert ours.get(binary(KEYS[0]), [(F, Q)])[0].to_pylist() == [_own(KEYS[0])]
    with paused(hbase_server), pytest.raises(Retriable, match=r"did not answer getMultiple within 1\.5 s"):
        ours.get(binary(KEYS[0]), [(F, Q)])
    for key in KEYS[1:]:
        assert HBaseTable(ours.settings, table.name).get(binary(key), [(F, Q)])[0].to_pylist() == [_own(key)]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_answer_that_nobody_waited_for_is_not_taken_for_the_next_questions(
    table: HBaseTable, monkeypatch: pytest.MonkeyPatch, interrupt: type[BaseException]
) -> None:
    table.put(binary(*KEYS), [cells(*map(_own, KEYS))], 1)
    ours = HBaseTable(replace(table.settings, timeout_s=21.0, connections=1), table.name)

    def interrupted(*_: object) -> None:
        raise interrupt

    with monkeypatch.context() as patch:
        patch.setattr(ThriftConnection, "_receive", interrupted)
        with pytest.raises(interrupt):
            ours.get(binary(KEYS[0]), [(F, Q)])
    for key in KEYS[1:]:
        assert ours.get(binary(key), [(F, Q)])[0].to_pylist() == [_own(key)]


def test_an_answer_to_another_question_ends_the_connection(table: HBaseTable) -> None:
    with closing(ThriftConnection(table.settings.addresses()[0], table.settings)) as connection:
        request = compact_protocol.arguments("tableExists", "binary", tableName=thrift.TTableName(qualifier=b"nosuch"))
        assert connection.ask_all("tableExists", [request] * 3) == [False] * 3
        connection._send("tableExists", [request])  # somebody asked, and did not wait for the answer
        until_s = time.monotonic() + 20
        while not connection.is_stale() and time.monotonic() < until_s:
            time.sleep(0.01)
        assert connection.is_stale()
        with pytest.raises(Unanswered, match=r"answered tableExists no\. 4 instead of no\. 5"):
            connection.ask_all("tableExists", [request])
        assert connection.is_dead


@pytest.mark.parametrize("kind", ["binary", "compact"])
def test_what_is_put_is_read_and_scanned_and_deleted(kind: str, table: HBaseTable, framed: HBaseSettings) -> None:
    here = table if kind == "binary" else HBaseTable(framed, table.name)
    keys = binary(b"r1", b"r7", b"r\0\xff", b"r3")
    here.put(keys, [cells(b"1", b"", None, None), cells(b"x", b"\0" * 3, b"z", None, qualifier=R)], 1000)
    here.put(keys[:1], [cells(b"new")], 2000)
    here.put(keys[:1], [cells(b"older")], 1500)

    found = here.read(binary(b"r7", b"nosuch", b"r1", b"r\0\xff"), [(F, R), (F, Q)])
    assert [column.to_pylist() for column in found.values] == [[b"\0" * 3, None, b"x", b"z"], [b"", None, b"new", None]]
    assert found.timestamps[1].to_pylist() == [1000, None, 2000, None]

    (batch,) = here.scan(b"", b"", [(F, Q), (F, R)])
    assert batch.keys.to_pylist() == [b"r\0\xff", b"r1", b"r7"]
    assert batch.values[0].to_pylist() == [None, b"new", b""]
    assert [b.keys.to_pylist() for b in here.scan(b"r1", b"r7", [(F, Q)])] == [[b"r1"]]
    assert [b.values[0].to_pylist() for b in here.scan(b"", b"", [(F, Q)], (0, 1600))] == [[b"older", b""]]
    assert here.regions() == [(b"", b"r5"), (b"r5", b"")]

    here.delete(keys[:2], [(F, Q)], 1500)
    assert here.get(keys[:2], [(F, Q), (F, R)])[0].to_pylist() == [b"new", None]
    assert here.get(keys[:2], [(F, R)])[0].to_pylist() == [b"x", b"\0" * 3]


@pytest.mark.parametrize("kind", ["binary", "compact"])
def test_a_conditional_write_is_done_where_its_guard_says_so(
    kind: str, table: HBaseTable, framed: HBaseSettings
) -> None:
    here = table if kind == "binary" else HBaseTable(framed, table.name)
    keys, none = binary(b"a", b"b", b"c"), [cells(b"va", b"vb", b"vc", qualifier=R)]
    assert here.put_if_greater(keys, cells(b"5", b"5", b"5"), none).to_pylist() == [True] * 3
    again = [cells(b"wa", None, b"wc", qualifier=R)]
    assert here.put_if_greater(keys, cells(b"4", b"6", b"5"), again).to_pylist() == [False, True, False]
    expected = binary(b"5", b"5", None)
    assert here.put_if_equal(keys, cells(b"7", b"7", b"7"), expected, again).to_pylist() == [*(True, False, False)]
    found = here.read(keys, [(F, Q), (F, R)])
    assert [column.to_pylist() for column in found.values] == [[b"7", b"6", b"5"], [b"wa", b"vb", b"vc"]]
    with pytest.raises(ValueError, match="neither null nor empty"):
        here.put_if_equal(keys, cells(b"7", b"", b"7"), expected, again)


def test_conditional_writes_of_many_at_once_each_take_effect_once(table: HBaseTable) -> None:
    keys = binary(*(b"counter%d" % number for number in range(5)))

    def raise_it() -> None:
        for number in range(1, 20):
            table.put_if_greater(binary(b"highest"), cells(b"%04d" % number), [cells(b"x", qualifier=R)])

    threads = [threading.Thread(target=raise_it) for _ in range(3)]
    applied = [0] * 5

    def race() -> None:
        for _ in range(10):
            (old,) = table.get(keys, [(F, Q)])
            new = binary(*(b"%04d" % (int(value or b"0") + 1) for value in old.to_pylist()))
            for key, won in enumerate(table.put_if_equal(keys, Cells(F, Q, new), old, []).to_pylist()):
                with lock:
                    applied[key] += won

    lock = threading.Lock()
    threads += [threading.Thread(target=race) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [int(value) for value in table.get(keys, [(F, Q)])[0].to_pylist()] == applied
    assert table.get(binary(b"highest"), [(F, Q)])[0].to_pylist() == [b"0019"]


def test_many_rows_go_in_requests_below_the_frame_limit_and_come_back(table: HBaseTable) -> None:
    here = HBaseTable(replace(table.settings, frame_bytes_max=64 << 10), table.name)
    keys = binary(*(b"r%06d" % number for number in range(12_000)))
    values = binary(*(b"%d" % number * 3 for number in range(12_000)))
    here.put(keys, [Cells(F, Q, values)], 1)
    assert here.get(keys, [(F, Q)])[0] == values
    batches = list(here.scan(b"", b"", [(F, Q)]))
    assert len(batches) > 1
    assert pa.concat_arrays([batch.keys for batch in batches]) == keys
    assert pa.concat_arrays([batch.values[0] for batch in batches]) == values


def test_a_framed_servers_limit_is_kept_and_a_longer_request_ends_with_what_to_do(
    table: HBaseTable, framed: HBaseSettings
) -> None:
    here = HBaseTable(framed, table.name)
    here.put(binary(*(b"r%d" % number for number in range(6))), [cells(*[b"x" * 900_000] * 6)], 1)
    with raises(ConfigError, "hbase-request-too-large"):
        here.put(binary(b"long"), [cells(b"x" * (3 << 20))], 1)
    table.put(binary(b"long"), [cells(b"x" * (3 << 20))], 1)  # a buffered one has no such limit
    with raises(BadRecord, "cell-too-large"):
        table.put(binary(b"longest"), [cells(b"x" * (11 << 20))], 1)
    with raises(BadRecord, "cell-too-large"):
        table.put_if_equal(binary(b"longest"), cells(b"1"), binary(None), [cells(b"x" * (11 << 20), qualifier=R)])


def test_of_a_request_with_a_bad_row_the_others_are_written_and_it_raises(table: HBaseTable) -> None:
    keys = binary(b"bad", b"good")
    with raises(ConfigError, "hbase-column-family-missing"):
        table.put(keys, [Cells(b"nosuch", Q, binary(b"1", None)), cells(None, b"2")], 1)
    assert table.get(keys, [(F, Q)])[0].to_pylist() == [None, b"2"]
    with raises(BadRecord, "row-key-length"):
        table.put(binary(b"", b"good"), [cells(b"1", b"3")], 2)
    with raises(BadRecord, "row-key-length"):
        table.put(binary(b"k" * 40_000, b"good"), [cells(b"1", b"3")], 2)
    assert table.get(keys, [(F, Q)])[0].to_pylist() == [None, b"2"]


def test_a_conditional_write_without_an_answer_is_in_doubt_until_it_is_read(
    table: HBaseTable, hbase_server: Any
) -> None:
    hasty = HBaseTable(replace(table.settings, timeout_s=1.5), table.name)
    keys = binary(b"a", b"b", b"c")
    hasty.put(keys, [cells(*b"111".split() * 3)], 1)
    hasty.put_if_equal(keys, cells(b"2", b"2", b"2"), hasty.get(keys, [(F, Q)])[0], [])
    with paused(hbase_server), raises(InDoubt, "hbase-write-unanswered"):
        hasty.put_if_equal(keys, cells(b"3", b"3", b"3"), binary(b"2", b"2", b"2"), [])
    landed = binary(*repeat(b"3", 3))
    until_s = time.monotonic() + 20
    while table.get(keys, [(F, Q)])[0] != landed and time.monotonic() < until_s:
        time.sleep(0.05)
    assert table.get(keys, [(F, Q)])[0] == landed, "the server went on with what its client had given up"


def test_what_may_be_repeated_outlives_the_thrift_server(table: HBaseTable, hbase_server: Any) -> None:
    keys = binary(*(b"r%d" % number for number in range(10)))
    table.put(keys, [cells(*[b"1"] * 10)], 1)
    hbase_server.thrift.kill()
    restarting = threading.Thread(target=hbase_server.thrift.start)
    restarting.start()
    table.put(keys, [cells(*[b"2"] * 10)], 2)
    restarting.join()
    assert table.get(keys, [(F, Q)])[0].to_pylist() == [b"2"] * 10
    # Connections that rested meanwhile are seen to be closed: nothing is sent on them, and nothing is in doubt.
    assert table.put_if_greater(keys, cells(*[b"3"] * 10), []).true_count == 10


def test_another_server_is_asked_where_one_is_away_or_silent(table: HBaseTable) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as closed:
        away, hangs = closed.getsockname()[1], silent.getsockname()[1]
        closed.close()
        servers = f"127.0.0.1:{away},127.0.0.1:{hangs},{table.settings.servers}"
        here = HBaseTable(replace(table.settings, servers=servers, timeout_s=2.0, connections=2), table.name)
        began_s = time.monotonic()
        for number in range(10):
            here.put(binary(b"r%d" % number), [cells(b"x")], 1)
        assert time.monotonic() - began_s < 15
        assert len(table.get(binary(*(b"r%d" % n for n in range(10))), [(F, Q)])[0].drop_null()) == 10
        pool(here.settings).close()


def test_servers_that_are_all_away_are_named_and_it_may_be_tried_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        away = closed.getsockname()[1]
    with raises(Retriable, "hbase-unreachable", f"{away}"):
        HBaseTable(HBaseSettings(f"127.0.0.1:{away}", timeout_s=0.3), "t").regions()


_FORKS = """
import os, sys, pyarrow as pa
from onefold.clients.hbase import Cells, HBaseSettings, HBaseTable
table = HBaseTable(HBaseSettings(sys.argv[1]), sys.argv[2])
keys = pa.array([b"r%d" % n for n in range(200)], pa.binary())
table.put(keys, [Cells(b"f", b"q", keys)], 1)
child = os.fork()
for _ in range(50):
    assert table.get(keys, [(b"f", b"q")])[0] == keys
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os._exit(0)
"""


def test_a_forked_process_has_its_own_connections(table: HBaseTable) -> None:
    subprocess.run([sys.executable, "-c", _FORKS, table.settings.servers, table.name], check=True, timeout=60)


def _raised(call: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    return str(caught.value)


def test_a_table_is_made_as_it_is_described_or_what_it_lacks_is_said(settings: HBaseSettings) -> None:
    name = f"t{uuid.uuid4().hex[:12]}"
    assert describe(settings, name) is None
    wanted = [ColumnFamily(b"f", versions_max=3), ColumnFamily(b"g", ttl_s=3600)]
    made = ensure(settings, name, wanted, [b"m"])
    assert (made.name, list(made.families)) == (name, wanted)
    create(settings, name, [ColumnFamily(b"other")])
    assert ensure(settings, name, [ColumnFamily(b"f", versions_max=2)]) == made, "it is left as it is"
    assert HBaseTable(settings, name).regions() == [(b"", b"m"), (b"m", b"")]
    assert "has no column family h: add it" in _raised(lambda: ensure(settings, name, [ColumnFamily(b"h")]))
    assert "keeps 3 versions, and 4 are needed" in _raised(lambda: ensure(settings, name, [ColumnFamily(b"f", 4)]))
    drop(settings, name)


@pytest.mark.slow
def test_a_disabled_table_is_refused_when_it_is_looked_at_and_later_looks_like_a_region_in_transit(
    table: HBaseTable,
) -> None:
    named = thrift.TTableName(ns=b"default", qualifier=table.name.encode())
    for call, look in (
        ("disableTable", pytest.raises(ConfigError, match="Enable the table")),
        ("enableTable", nullcontext()),
    ):
        asked = pool(table.settings).ask_once(call, [compact_protocol.arguments(call, "binary", tableName=named)])
        assert asked == [None]
        with look:
            ensure(table.settings, table.name, [ColumnFamily(F)])
        if call == "disableTable":
            hasty = HBaseTable(table.settings, table.name, repeats=False)
            with pytest.raises(Retriable, match=r"NotServingRegionException.*Is the table enabled"):
                hasty.put(binary(b"k"), [cells(b"1")], 1)
    table.put(binary(b"k"), [cells(b"1")], 1)


def test_what_is_not_there_is_named(settings: HBaseSettings) -> None:
    table, key = HBaseTable(settings, "no_such_table"), binary(b"k")
    for call in (
        lambda: table.put(key, [cells(b"1")], 1),
        lambda: table.get(key, [(F, Q)]),
        lambda: list(table.scan(b"", b"", [(F, Q)])),
        lambda: table.put_if_equal(key, cells(b"1"), binary(None), []),
        table.regions,
    ):
        assert "has no table 'no_such_table': create it" in _raised(call)
    assert "create_namespace 'nowhere'" in _raised(lambda: create(settings, "nowhere:t", [ColumnFamily(F)]))
    assert "not 'a b'" in _raised(lambda: HBaseTable(settings, "a b"))
