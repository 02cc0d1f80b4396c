"""Destinations of every kind, each with what somebody may do to its table or topic behind a pipeline's back."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from confluent_kafka import OFFSET_BEGINNING
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from harness.calls import Ask
from harness.definitions import into
from harness.kafka.reading import Reader
from harness.support import wait_until

from onefold.clients.hbase import ColumnFamily, HBaseSettings, HBaseTable, table_admin
from onefold.core import Committable, EpochRecord, Positions, Range, Sink
from onefold.core.protocol.effects import EpochRequest
from onefold.core.protocol.epoch import Initial
from onefold.sinks import HBaseSink, KafkaSink, PostgresSink, SqlSink
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.job.session import Session, task_of

__all__ = ["KINDS", "SCHEMA", "Place", "each", "place_of"]

KINDS = ("two_phase", "staged", "sqlite", "row_key", "transactional", "keyed")
SLOW = {
    "row_key": (pytest.mark.slow, pytest.mark.xdist_group("hbase")),
    "transactional": (pytest.mark.slow,),
    "keyed": (pytest.mark.slow,),
}
SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
ROWS = 10


def each(*kinds: str) -> pytest.MarkDecorator:
    """Runs a test with the fixture `place` of each of these kinds."""
    params = [pytest.param(kind, marks=SLOW.get(kind, ())) for kind in kinds]
    return pytest.mark.parametrize("place", params, indirect=True)


@dataclass
class Place:
    """A target named `target`, and pipelines into it, each with its store. `ids` reads what shows, once each.

    `sink` makes the target's sink, or that of another target in the same place.
    """

    target: str
    store: str
    sink: Callable[..., Sink]
    ids: Callable[[], list[int]]
    drop: Callable[[], object]
    make: Callable[[], object]
    empty: Callable[[], object]
    pipeline: str = "p"
    more: dict[str, Any] = field(default_factory=dict)

    def defined(self, *others: str, **more: Any) -> str:
        """What a command takes for a pipeline into the target, and into these others."""
        sinks = [self.sink(), *map(self.sink, others)]
        return into(*sinks, name=self.pipeline, store=self.store, **more)

    @contextmanager
    def session(self) -> Iterator[Session]:
        with closing(Session(self.pipeline, [self.sink()], CheckpointStore(self.store), patience_s=5)) as session:
            session.start(Initial(_at(0)))
            yield session

    def run(self, epochs: int = 1, *, accept_targets: bool = False) -> None:
        """One life: a start, the sink's opening, and epochs of ten rows from where the pipeline stands."""
        with self.session() as session:
            if accept_targets:
                session.accept_targets()
            session.open_sinks(SCHEMA)
            for _ in range(epochs):
                self.epoch(session)

    def epoch(self, session: Session, doing: Callable[[], object] = lambda: None) -> None:
        """`doing` happens when the epoch's rows are prepared."""
        last = session.facts().last
        number = 0 if last is None else int(dict(last.range.end.items)["t/0"])

        def write(record: EpochRecord) -> tuple[Committable, ...]:
            writer = session.sinks[0].writer(task_of(record))
            ids = pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64())
            writer.write(pa.record_batch([ids, ids], schema=SCHEMA))
            prepared = writer.prepare()
            assert prepared is not None
            doing()
            return (prepared,)

        between = Range(_at(number), _at(number + 1))
        request = EpochRequest(between, "q", number, "job", session.names, session.write_through, number > 0)
        session.run_epoch(request, write)

    def assert_exact(self, epochs: int) -> None:
        assert sorted(self.ids()) == list(range(epochs * ROWS))


def _at(number: int) -> Positions:
    return Positions.of({"t/0": number})


@contextmanager
def place_of(kind: str, request: pytest.FixtureRequest, directory: Path) -> Iterator[Place]:
    name, store = f"test_{uuid.uuid4().hex[:12]}", f"sqlite:///{directory / f'{uuid.uuid4().hex}.db'}"
    if kind in ("two_phase", "staged"):
        yield _of_postgres(kind, name, request.getfixturevalue("postgres_url"))
    elif kind == "sqlite":
        yield _of_sqlite(name, directory / "rows.db")
    elif kind == "row_key":
        yield _of_hbase(name, store, request.getfixturevalue("hbase_server").servers)
    else:
        with _of_kafka(kind, name, store, request.getfixturevalue("kafka_server").bootstrap_servers) as place:
            yield place


def _of_postgres(delivery: str, name: str, url: str) -> Place:
    ask = Ask(url)
    sink = PostgresSink(url, name, delivery=delivery)
    return Place(
        target=name,
        store=sink.store_url() or "",
        sink=lambda table=name: PostgresSink(url, table, delivery=delivery),
        ids=lambda: ask.ids(name),
        drop=lambda: ask(f"DROP TABLE {name}"),
        make=lambda: ask(f"CREATE TABLE {name} (id bigint, n bigint)"),
        empty=lambda: ask(f"TRUNCATE {name}"),
        more={"ask": ask},
    )


def _of_sqlite(name: str, file: Path) -> Place:
    url = f"sqlite:///{file}"

    def do(statement: str) -> list[Any]:
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        with engine.begin() as connection:
            found = connection.execute(sa.text(statement))
            return [row[0] for row in found] if found.returns_rows else []

    return Place(
        target=name,
        store=url,
        sink=lambda table=name: SqlSink(url, table),
        ids=lambda: do(f"SELECT id FROM {name}"),
        drop=lambda: do(f"DROP TABLE {name}"),
        make=lambda: do(f"CREATE TABLE {name} (id BIGINT, n BIGINT)"),
        empty=lambda: do(f"DELETE FROM {name}"),
    )


def _of_hbase(name: str, store: str, servers: str) -> Place:
    settings = HBaseSettings(servers)

    def ids() -> list[int]:
        return [
            int.from_bytes(key) - 2**63
            for part in HBaseTable(settings, name).scan(b"", b"", [(b"f", b"n")])
            for key in part.keys.to_pylist()
        ]

    return Place(
        target=name,
        store=store,
        sink=lambda table=name: HBaseSink(servers, table, row_key="id", family="f"),
        ids=ids,
        drop=lambda: table_admin.drop(settings, name),
        make=lambda: table_admin.create(settings, name, [ColumnFamily(b"f")]),
        empty=lambda: table_admin.truncate(settings, name),
    )


@contextmanager
def _of_kafka(delivery: str, name: str, store: str, servers: str) -> Iterator[Place]:
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})

    def make() -> None:
        admin.create_topics([NewTopic(name, num_partitions=2, replication_factor=1)])[name].result(30)

    def drop() -> None:
        admin.delete_topics([name])[name].result(30)
        wait_until(lambda: name not in admin.list_topics(timeout=10).topics, f"deleting {name}")

    def ids() -> list[int]:
        with closing(Reader(servers, name, 2)) as reader:
            reader.next = dict.fromkeys(reader.next, OFFSET_BEGINNING)
            return sorted(set(reader.ids())) if delivery == "keyed" else reader.ids()

    make()
    more = {"delivery": "keyed", "id": "id"} if delivery == "keyed" else {"key": "id"}
    yield Place(
        target=name,
        store=store,
        sink=lambda topic=name: KafkaSink(topic, bootstrap_servers=servers, **more),
        ids=ids,
        drop=drop,
        make=make,
        empty=lambda: None,  # its records are deleted by itself, too: nobody could tell
        pipeline=f"p-{name[-8:]}",  # whose ledger topic is its own
    )
