"""One patience for every server: a start ends when it is over, whatever a server does in place of answering."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from harness.errors import raises

from onefold.clients.hbase import HBaseSettings
from onefold.core import Retriable, Sink
from onefold.core.testing import ModelTwoPhaseSink
from onefold.sinks import HBaseSink, KafkaSink, PostgresSink, SqlSink
from onefold.sinks.hbase.epoch_log import TableNotes
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.job.session import Session

PATIENCE_S = 0.5
SLACK_S = 3.0  # of a busy machine
# Each with the most that one try may take.
SINKS: dict[str, tuple[float, Callable[[int], Sink]]] = {
    "hbase": (0.5, lambda port: hbase(port, timeout_s=0.5)),
    "kafka": (0.5, lambda port: KafkaSink("t", bootstrap_servers=f"127.0.0.1:{port}", timeout_s=0.5)),
    "postgres": (2, lambda port: PostgresSink(f"postgresql://u@127.0.0.1:{port}/d", "t", connect_timeout_s=2)),
    "mariadb": (1, lambda port: SqlSink(f"mariadb://u@127.0.0.1:{port}/d?connect_timeout=1", "t")),
}
STORES = {
    "postgres": (2, "postgresql+psycopg://u@127.0.0.1:{}/d?connect_timeout=2"),
    "mariadb": (1, "mariadb+pymysql://u@127.0.0.1:{}/d?connect_timeout=1"),
}


def hbase(port: int, timeout_s: float) -> HBaseSink:
    return HBaseSink(HBaseSettings(f"127.0.0.1:{port}", timeout_s=timeout_s), "t", row_key="id", family="f")


@pytest.fixture(params=["closed", "silent", "full"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """Where nobody listens; where connections are taken and nothing is answered; and where no more are taken."""
    with ExitStack() as stack:
        server = stack.enter_context(
            socket.create_server(("127.0.0.1", 0), backlog=0 if request.param == "full" else 99)
        )
        number: int = server.getsockname()[1]
        if request.param == "closed":
            server.close()
        for _ in range(3 if request.param == "full" else 0):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", number))
        yield number


def assert_ends(start: Callable[[], object], try_s: float) -> None:
    began_s = time.monotonic()
    with pytest.raises(Retriable):
        start()
    assert PATIENCE_S <= time.monotonic() - began_s <= PATIENCE_S + try_s + SLACK_S


@pytest.mark.parametrize("kind", SINKS)
def test_a_sinks_server_that_is_away_at_the_start_is_waited_for_as_long_as_the_pipeline_has_patience(
    kind: str, port: int, tmp_path: Path
) -> None:
    try_s, sink = SINKS[kind]
    store = CheckpointStore(f"sqlite:///{tmp_path / 'store.db'}")
    assert_ends(lambda: Session("p", [sink(port)], store, PATIENCE_S), try_s)


@pytest.mark.parametrize("kind", STORES)
def test_so_is_the_checkpoint_stores(kind: str, port: int) -> None:
    try_s, url = STORES[kind]
    session = Session("p", [ModelTwoPhaseSink("a")], CheckpointStore(url.format(port)), PATIENCE_S)
    assert_ends(lambda: session.start(None), try_s)


def test_the_driver_asks_hbase_once_and_leaves_it_to_its_patience_to_ask_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    began_s = time.monotonic()
    with raises(Retriable, "hbase-unreachable"):
        TableNotes(hbase(port, timeout_s=60).settings, "p").read()
    assert time.monotonic() - began_s < SLACK_S
