"""What tables have in common as sources: one epoch, and then they are done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.core.errors import Retriable
from onefold.core.positions import Positions, Range, Relation
from onefold.core.source import ReadOnce
from onefold.sources import FileSource, HBaseSource, KafkaSource, PostgresSource
from onefold.sources.table_source import PlannedTable, TableSource

UNREAD, READ = (Positions.of({"@numbers/0": at}) for at in (0, 1))
LISTED_NOWHERE = Positions.of({"orders/0": 7})


@dataclass
class Numbers(TableSource):
    """Of the plans that are held, the numbers."""

    name: str = "numbers"
    held: list[int] = field(default_factory=list)
    plans: int = 0

    def parts(self, schema: pa.Schema | None = None) -> Sequence[Any]:
        del schema
        return [self.plans * 10, self.plans * 10 + 1]

    def batches(self, part: Any) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"n": [part]})

    def planned(self) -> PlannedTable:
        self.plans += 1
        mine = self.plans
        self.held.append(mine)
        return PlannedTable(self.parts(), lambda: self.held.remove(mine))


def test_its_position_is_whether_it_was_read_and_has_an_order() -> None:
    planner = Numbers().planner()
    assert planner.initial() == UNREAD
    assert planner.end(UNREAD) == planner.latest(UNREAD) == planner.end(READ) == planner.end(LISTED_NOWHERE) == READ
    assert [planner.is_done(at) for at in (UNREAD, LISTED_NOWHERE, READ)] == [False, False, True]
    assert READ.relation_to(UNREAD) is READ.relation_to(Positions()) is Relation.AHEAD
    assert READ.topics() == {}
    assert Numbers().planner(READ).initial() == READ


def test_each_attempt_is_planned_anew_and_the_one_before_is_let_go() -> None:
    source = Numbers()
    planner = source.planner()
    epoch = Range(LISTED_NOWHERE, READ)
    assert [split.range for split in planner.splits(epoch)] == [10, 11]
    assert [split.range for split in planner.splits(epoch)] == [20, 21]
    assert source.held == [2]
    assert planner.splits(Range(READ, READ)) == planner.splits(Range(UNREAD, LISTED_NOWHERE)) == []
    planner.completed(UNREAD)  # the epoch before, whose successor is read ahead
    assert source.held == [2]
    planner.completed(READ)
    assert source.held == []
    planner.splits(epoch)
    planner.close()
    assert source.held == []


def test_a_plan_that_fails_leaves_nothing_held() -> None:
    class Away(Numbers):
        def planned(self) -> PlannedTable:
            if self.plans:
                raise Retriable("away", "the server does not answer")
            return super().planned()

    source = Away()
    planner = source.planner()
    planner.splits(Range(UNREAD, READ))
    with raises(Retriable, "away"):
        planner.splits(Range(UNREAD, READ))
    assert source.held == []


def test_tables_files_and_topics_of_one_name_have_positions_of_their_own() -> None:
    table = PostgresSource("postgresql://localhost/x", "orders", name="orders")
    other = HBaseSource("localhost:1", "orders", row_key="id integer", columns={"n": "f:n integer"})
    topics = [KafkaSource("orders", bootstrap_servers="localhost:1")]
    every: Any = {"topics_pattern": ".*", "bootstrap_servers": "localhost:1"}
    sources: list[Any] = [table, other, FileSource("/in/orders", format="parquet"), KafkaSource(**every), *topics]
    names = ["@orders/0", "@HBase table orders/3", "#orders/", "orders/0"]
    covered = [[source.covers(name) for name in names] for source in sources]
    assert covered == [
        [True, False, False, False],
        [False, True, False, False],
        [False, False, True, False],
        [False, False, False, True],
        [False, False, False, True],
    ]
    assert PostgresSource("postgresql://localhost/x", "orders").name == "table orders"
    assert PostgresSource("postgresql://localhost/x", query="SELECT 1 AS n").name == "the query"


@pytest.mark.parametrize("kind", ["postgres", "hbase"])
def test_tables_are_read_once(kind: str) -> None:
    sources = {
        "postgres": PostgresSource("postgresql://localhost/x", "orders", schema="id long"),
        "hbase": HBaseSource("localhost:1", "orders", row_key="id integer", columns={"n": "f:n integer"}),
    }
    source = sources[kind]
    assert isinstance(source, ReadOnce)
    assert source.is_of_one_moment is (kind == "postgres")
    assert source.arrow_schema().field("id").type == pa.int64()
    assert not Numbers().is_of_one_moment, "who says nothing of it is read once, too"


def test_it_says_who_on_the_network_could_read_along() -> None:
    far, columns = "10.0.0.1:1", {"n": "f:n integer"}
    assert not PostgresSource("postgresql://localhost/x", "orders").exposure()
    assert "sslmode" in PostgresSource("postgresql://10.0.0.1/x", "orders").exposure()
    assert not HBaseSource("localhost:1", "orders", row_key="id integer", columns=columns).exposure()
    assert "TLS" in HBaseSource(far, "orders", row_key="id integer", columns=columns).exposure()
