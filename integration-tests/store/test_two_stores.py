"""One pipeline on two hosts, each with a checkpoint store of its own: only one of them gets anything in."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from harness.errors import raises
from harness.kafka.life import SCHEMA, batches
from harness.kafka.reading import Reader, open_transactions
from harness.pipeline_drivers import PipelineDriver, World, at_failpoint

from onefold.clients.hbase import HBaseSettings, HBaseTable
from onefold.core import CheckpointMismatch, EpochRecord, Fenced, Positions, Sink
from onefold.core.protocol.epoch import Started
from onefold.sinks import HBaseSink, KafkaSink, PostgresSink

pytestmark = pytest.mark.servers

KINDS = ["transactional", "keyed", "two_phase", "row_key"]


class Place:
    """A destination that both hosts write to: `sink` makes their sinks, `ids` reads what shows, repeats included."""

    def __init__(
        self,
        sink: Callable[[], Sink],
        ids: Callable[[], list[int]],
        directory: Path,
        prepared: Callable[[], list[str]] = list,
    ) -> None:
        self.sink, self.ids, self.prepared, self.directory = sink, ids, prepared, directory

    def host(self, name: str) -> Host:
        return Host(self, name)

    def assert_exact(self, epochs: int) -> None:
        assert sorted(self.ids()) == list(range(10 * epochs))
        assert self.prepared() == []


class Host(PipelineDriver[Sink]):
    def __init__(self, place: Place, name: str) -> None:
        super().__init__([place.sink()], "p", f"sqlite:///{place.directory / name}.db")

    def start(self, *, adopt_ledger: bool = False) -> Started:
        started = self.recover(from_ledger=True, adopt_ledger=adopt_ledger)
        self.open(SCHEMA)
        return started

    def epoch(self, number: int, doing: Callable[[], object] = lambda: None) -> None:
        """The ids from `10 * number` on, in two tasks; `doing` happens once, when both have prepared."""

        def write(record: EpochRecord) -> tuple[object, ...]:
            nonlocal doing
            prepared = [c for batch in batches(number) for c in self.task(self.sinks[0], record, [batch])]
            doing()
            doing = int  # once, if the writers run again
            return tuple(prepared)

        self.process(number, number + 1, number, write)  # type: ignore[arg-type]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    name = f"test-{uuid.uuid4().hex[:12]}"
    if request.param in ("transactional", "keyed"):
        servers = request.getfixturevalue("kafka_server").bootstrap_servers
        topic = request.getfixturevalue("kafka_topic")(partitions=2)
        options = {"delivery": "keyed", "id": "id"} if request.param == "keyed" else {"key": "id"}
        with closing(Reader(servers, topic, 2)) as reader:
            # A keyed topic's readers drop what they have seen.
            ids = reader.ids if request.param == "transactional" else lambda: sorted(set(reader.ids()))

            def opened() -> list[str]:
                return [name for name in open_transactions(servers) if f"/{topic}/" in name]

            yield Place(lambda: KafkaSink(topic, bootstrap_servers=servers, **options), ids, tmp_path, opened)
    elif request.param == "two_phase":
        url = request.getfixturevalue("postgres_url")

        def ask(query: str) -> list[object]:
            with psycopg.connect(url, autocommit=True) as connection:
                return [row[0] for row in connection.execute(query.encode())]

        yield Place(
            lambda: PostgresSink(url, "t"),
            lambda: ask("SELECT id FROM t"),  # type: ignore[arg-type,return-value]
            tmp_path,
            lambda: ask("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"),  # type: ignore[arg-type,return-value]
        )
    else:
        servers = request.getfixturevalue("hbase_server").servers

        def rows() -> list[int]:
            table = HBaseTable(HBaseSettings(servers), name)
            return [
                int.from_bytes(key) - 2**63
                for part in table.scan(b"", b"", [(b"f", b"name")])
                for key in part.keys.to_pylist()
            ]

        yield Place(lambda: HBaseSink(servers, name, row_key="id", family="f"), rows, tmp_path)


def test_a_second_store_is_refused_before_the_first_one_has_completed_anything(place: Place) -> None:
    with place.host("a") as first, place.host("b") as second:
        first.start()
        with pytest.raises(CheckpointMismatch) as refused:
            second.start()
        said = str(refused.value)
        assert first.store.id() in said and second.store.id() in said
        assert "call flow.recover(checkpoint=..., adopt_ledger=True)" in said
        first.epoch(0)
        with raises(CheckpointMismatch, "another-store", "the pipeline resumes exactly where the destination stands"):
            second.start()
        first.epoch(1)
        place.assert_exact(2)


@pytest.mark.slow
def test_an_adoption_fences_the_old_host_which_lives_on(place: Place) -> None:
    with place.host("a") as first, place.host("b") as second:
        first.start()
        first.epoch(0)
        second.start(adopt_ledger=True)
        with pytest.raises(Fenced, match=f"taken over by generation 2 of checkpoint store {second.store.id()}") as told:
            first.epoch(1)
        assert told.value.exit_code == 73
        second.epoch(1)
        second.epoch(2)
        with raises(CheckpointMismatch, "another-store", "adopt_ledger=True"):
            first.start()
        place.assert_exact(3)
        first.start(adopt_ledger=True)
        with pytest.raises(Fenced, match=f"taken over by generation 4 of checkpoint store {first.store.id()}"):
            second.epoch(3)
        first.epoch(3)
        first.start(adopt_ledger=True)
        place.assert_exact(4)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["transactional", "two_phase"], indirect=True)
def test_what_the_old_host_had_prepared_is_swept_and_never_decided(place: Place) -> None:
    with place.host("a") as first, place.host("b") as second:
        first.start()
        first.epoch(0)
        with pytest.raises(Fenced, match="adopted the pipeline's ledger"):
            first.epoch(1, doing=lambda: second.start(adopt_ledger=True))
        second.epoch(1)
        place.assert_exact(2)


class Died(BaseException):
    pass


@pytest.mark.parametrize("place", ["two_phase"], indirect=True)
def test_an_epoch_that_shows_in_part_refuses_the_adoption_and_its_own_store_finishes_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die() -> None:
        raise Died

    with place.host("a") as first, place.host("b") as second:
        first.start()
        first.epoch(0)
        at_failpoint(monkeypatch, "postgres.commit_prepared", die)
        with pytest.raises(Died):
            first.epoch(1)
        with raises(CheckpointMismatch, "epoch-half-written"):
            second.start(adopt_ledger=True)
        first.start(adopt_ledger=True)
        place.assert_exact(2)


@pytest.mark.slow
def test_a_store_that_another_one_has_bound_over_comes_back(place: Place) -> None:
    """The other host dies in the middle of its adoption."""
    with place.host("a") as first, place.host("b") as second:
        first.start()
        first.epoch(0)
        adopt = second.store.adopt

        def die(*_: object) -> None:
            raise Died

        second.store.adopt = die  # type: ignore[method-assign]
        with pytest.raises(Died):
            second.start(adopt_ledger=True)
        second.store.adopt = adopt  # type: ignore[method-assign]
        with pytest.raises(Fenced):
            first.epoch(1)
        first.start(adopt_ledger=True)
        first.epoch(1)
        place.assert_exact(2)


@pytest.mark.slow
def test_a_destination_that_is_taken_back_to_the_other_stores_time_is_adopted_where_it_stands(
    postgres_url: str, tmp_path: Path
) -> None:
    def host(name: str) -> World:
        return World(postgres_url, PostgresSink(postgres_url, "t"), store=f"sqlite:///{tmp_path / name}.db")

    with host("a") as first:
        first.start()
        first.epoch(0)
        first.epoch(1)
        ((epoch, generation, timestamp_ms, positions, store_id),) = first.sql(
            "SELECT epoch, generation, timestamp_ms, positions::text, store_id FROM onefold_sinks.onefold_ledger"
        )
        with host("b") as second:
            second.start(adopt_ledger=True)
            second.epoch(2)
            second.epoch(3)
        first.sql(
            f"UPDATE onefold_sinks.onefold_ledger SET (epoch, generation, timestamp_ms, positions, store_id) ="
            f" ({epoch}, {generation}, {timestamp_ms}, '{positions}', '{store_id}')"
        )
        first.sql("DELETE FROM onefold_sinks.onefold_parts")
        first.sql("DELETE FROM t WHERE id >= 20")
    with host("b") as second:
        with raises(CheckpointMismatch, "another-store", "adopt_ledger=True"):
            second.start()
        started = second.recover(from_ledger=True, adopt_ledger=True)
        assert started.start == Positions.of({"t/0": 2})
        second.start()
        second.epoch(2)
        second.epoch(3)
        second.assert_exact(4)
