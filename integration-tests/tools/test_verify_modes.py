"""`onefold verify` of upserts, deletions and dead letters: exact where it is, and every change by hand is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from harness.definitions import named, piped
from harness.errors import raises
from harness.support import Rig
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.core import ConfigError
from onefold.core.invariants import Comparison
from onefold.sinks import PostgresSink
from onefold.sinks.staged.upsert import Changes
from onefold.spark.verify.comparing.reconcile import DeadLetters
from onefold.spark.verify.verification import Verification, compare, verify

pytestmark = pytest.mark.servers

VERSIONS = "id long, version long, name string, gone boolean"
POSITION = ("kafka_topic", "kafka_partition", "kafka_offset")
CHANGES = Changes(("id",), ("version",), delete_when_true="gone")


def wrong(found: Comparison) -> dict[str, int]:
    kinds = {"lost": found.lost, "duplicated": found.duplicated, "changed": found.changed}
    return {kind: count for kind, count in {**kinds, "unexpected": found.unexpected}.items() if count}


class Sides:
    """Rows and dead letters by hand, compared without any server."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def frame(self, rows: list[Any], schema: str) -> DataFrame:
        return self.spark.createDataFrame(rows, schema).coalesce(1)

    def letters(self, *letters: tuple[int | None, Any], position: tuple[str, ...] = ()) -> DeadLetters:
        texts = [(None if at is None else json.dumps({"at": at}), json.dumps(row)) for at, row in letters]
        return DeadLetters(self.frame(texts, "position string, row string"), position)

    def appended(self, rows: list[Any], there: list[Any], *letters: Any, position: bool = False) -> dict[str, int]:
        """Rows are (at, id, name), and (id, name) in the table."""
        dead = self.letters(*letters, position=("at",) if position else ())
        expected = self.frame(rows, "at int, id long, name string")
        return wrong(compare(expected, self.frame(there, "id long, name string"), ["id"], None, dead))

    def newest(self, rows: list[Any], there: list[Any], *letters: Any, position: bool = False) -> dict[str, int]:
        """Rows are (at, id, version, name, gone), and (id, version, name) in the table."""
        dead = self.letters(*letters, position=("at",) if position else ())
        expected = self.frame(rows, f"at int, {VERSIONS}")
        actual = self.frame(there, "id long, version long, name string")
        return wrong(compare(expected, actual, ["id"], CHANGES, dead))


@pytest.fixture(scope="module")
def sides(spark: SparkSession) -> Iterator[Sides]:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    yield Sides(spark)
    spark.conf.set("spark.sql.shuffle.partitions", before or "4")


@pytest.mark.slow
@pytest.mark.parametrize("position", [pytest.param(True, marks=pytest.mark.soak), False])
def test_of_appended_rows_each_is_in_the_table_or_among_the_dead_letters_once(sides: Sides, position: bool) -> None:
    rows = [(0, 1, "a"), (1, 2, "b"), (2, 2, "c"), (3, None, "d"), (4, 5, "e")]
    there = [(1, "a"), (2, "b"), (5, "e")]
    dead = [(2, {"id": 2}), (3, {"id": None})]

    def judged(there: list[Any], *dead: Any) -> dict[str, int]:
        return sides.appended(rows, there, *dead, position=position)

    assert judged(there, *dead) == {}
    assert judged(there, dead[0]) == {"lost": 1}
    assert judged(there, *dead, dead[1]) == {"duplicated": 1}
    assert judged([*there, (2, "c")], *dead) == {"duplicated": 1}
    assert judged(there[1:], *dead, (0, {"id": 1})) == {}, "row 1 is accounted for"
    assert judged(there, *dead, (0, {"id": 1})) == {"duplicated": 1}
    assert judged(there, *dead, (9, {"id": 9})) == {"unexpected": 1}
    assert judged([(1, "x"), *there[1:]], *dead) == {"changed": 1}


@pytest.mark.slow
def test_a_position_tells_which_of_a_keys_rows_is_dead_and_the_key_which_of_a_positions(sides: Sides) -> None:
    rows, there = [(0, 1, "a"), (1, 1, "b")], [(1, "a")]
    assert sides.appended(rows, there, (1, {"id": 1}), position=True) == {}
    assert sides.appended(rows, there, (0, {"id": 1}), position=True) == {"changed": 1}
    assert sides.appended(rows, there, (0, {"id": 1})) == {}, "without, either may be"
    assert sides.appended(rows, [], (0, {"id": 1}), (0, {"id": 1}), position=True) == {"lost": 1, "duplicated": 1}
    one_record = [(0, 1, "a"), (0, 2, "b")]
    assert sides.appended(one_record, there, (0, {"id": 2}), position=True) == {}
    assert sides.appended(one_record, there, (0, {"id": 1}), position=True) == {"lost": 1, "duplicated": 1}


@pytest.mark.slow
def test_of_equal_keys_at_one_position_as_many_are_dead_as_there_are_dead_letters(sides: Sides) -> None:
    """They were one record, and nothing else tells them apart."""
    rows, dead = [(0, 1, "a"), (0, 1, "b"), (1, 1, "c")], (0, {"id": 1})

    def judged(there: list[Any], *dead: Any) -> dict[str, int]:
        return sides.appended(rows, there, *dead, position=True)

    assert judged([(1, "a"), (1, "c")], dead) == {}
    assert judged([(1, "c")], dead) == {"lost": 1}
    assert judged([(1, "a"), (1, "b"), (1, "c")], dead) == {"duplicated": 1}
    assert judged([(1, "c")], dead, dead) == {}
    assert judged([(1, "c")], dead, dead, dead) == {"duplicated": 1}
    versions = [(0, 1, 5, "a", False), (0, 1, 5, "b", False), (1, 1, 3, "c", False)]
    five = (0, {"id": 1, "version": 5})
    assert sides.newest(versions, [(1, 5, "b")], five, position=True) == {}
    assert sides.newest(versions, [], five, position=True) == {"lost": 1}
    assert sides.newest(versions, [(1, 3, "c")], five, five, position=True) == {}


@pytest.mark.slow
def test_columns_with_odd_names_are_compared_too(sides: Sides) -> None:
    rows = sides.frame(
        [(1, 2, "a", False), (1, 1, "b", False)], "`a.key` long, `an ``order``` long, `x``y` string, g boolean"
    )
    there = sides.frame([(1, 2, "a")], "`a.key` long, `an ``order``` long, `x``y` string")
    changes = Changes(("a.key",), ("an `order`",), delete_when_true="g")
    dead = sides.letters((None, {"a.key": 7, "an `order`": 1}))
    assert wrong(compare(rows, there, ["a.key"], changes)) == {}
    assert wrong(compare(rows, there, ["a.key"], changes, dead)) == {"unexpected": 1}
    assert wrong(compare(there, there.limit(0), ["x`y", "a.key"])) == {"lost": 1}


def test_settings_that_name_columns_which_the_rows_lack_are_told(sides: Sides) -> None:
    rows = sides.frame([(1, 1)], "id long, version long")
    with raises(ConfigError, "verify-columns-missing"):
        compare(rows, rows, ["id"], None, sides.letters(position=("at",)))
    with raises(ConfigError, "verify-columns-missing"):
        compare(rows, rows, ["id"], Changes(("id",), ("changed_at",), delete_when_true="gone"))


@pytest.mark.slow
@pytest.mark.parametrize("position", [pytest.param(True, marks=pytest.mark.soak), False])
def test_of_versions_the_newest_that_is_alive_is_the_row(sides: Sides, position: bool) -> None:
    rows = [
        (0, 1, 1, "a", False),
        (1, 1, 3, "c", None),
        (2, 1, 2, "b", False),
        (3, 2, 5, "x", False),
        (4, 2, 5, "x", True),  # a deletion wins against an equal order
        (5, 3, 7, "y", True),
        (6, 3, 8, "z", False),
        (7, 4, 1, "s", False),
        (8, 4, 1, "t", False),  # either may be there
        (9, 5, 1, "good", False),
        (10, 5, 2, "bad", False),
    ]
    there = [(1, 3, "c"), (3, 8, "z"), (4, 1, "t"), (5, 1, "good")]
    dead = (10, {"id": 5, "version": 2})

    def judged(there: list[Any], *dead: Any) -> dict[str, int]:
        return sides.newest(rows, there, *dead, position=position)

    assert judged(there, dead) == {}
    assert judged([*there[:2], (4, 1, "s"), there[3]], dead) == {}
    assert judged(there) == {"changed": 1}, "version 2 of row 5 is nowhere"
    assert judged([*there[:3], (5, 2, "bad")], dead) == {"duplicated": 1}
    assert judged(there, dead, dead) == {"duplicated": 1}
    assert judged(there, dead, (99, {"id": 5, "version": 9})) == {"unexpected": 1}
    assert judged([*there, (2, 5, "x")], dead) == {"unexpected": 1}
    assert judged([(1, 2, "b"), *there[2:]], dead) == {"changed": 1, "lost": 1}
    assert judged([(1, 3, "other"), *there[1:]], dead) == {"changed": 1}


def upserting(rig: Rig, **more: Any) -> PostgresSink:
    settings: dict[str, Any] = {"mode": "upsert", "key": "id", "order": "version", "delete_when_true": "gone", **more}
    return rig.sink("staged", on_error="dead_letter", source_position=POSITION, **settings)


def checked(rig: Rig, sink: PostgresSink, schema: str, **more: Any) -> Verification:
    pipeline = rig.pipeline(sink, source=rig.source(schema=schema, columns="position"))
    try:
        return verify(rig.spark, pipeline, sink, **more)
    finally:
        pipeline.close()


@pytest.mark.slow
def test_a_table_of_versions_with_deletions_and_dead_letters_is_verified(rig: Rig) -> None:
    rig.sql("CREATE TABLE rows (id bigint PRIMARY KEY, version bigint, name text CHECK (name <> 'bad'))")
    versions = [(key, number * 7 % 10) for number in range(10) for key in range(50)]
    values = [
        {"id": key, "version": version, "name": "bad" if (key, version) == (7, 9) else "good", "gone": key % 5 == 0}
        for key, version in versions
    ]
    rig.put_values([json.dumps(value).encode() for value in values])
    rig.run(rig.pipeline(upserting(rig), source=rig.source(schema=VERSIONS, columns="position", at_most=200)))
    found = checked(rig, upserting(rig), VERSIONS)
    assert found.is_exact, found
    assert (found.comparison.expected, found.comparison.actual, found.comparison.dead) == (40, 40, 1)
    with pytest.raises(ConfigError, match="named by id"):
        checked(rig, upserting(rig), VERSIONS, key=["name"])
    source = rig.source(schema=VERSIONS, columns="position")
    pipeline = named(piped("test", source=source, sinks=[upserting(rig)]))
    answer = CliRunner().invoke(app, ["verify", pipeline, "--json"])
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.output)["sinks"]["rows"]["comparison"]["dead"] == 1
    without = named(piped("test", source=rig.source(schema=VERSIONS), sinks=[upserting(rig)]))
    refused = CliRunner().invoke(app, ["verify", without])
    assert isinstance(refused.exception, ConfigError)
    assert "lack kafka_topic, kafka_partition, kafka_offset" in str(refused.exception)
    rig.sql("DELETE FROM rows WHERE id = 1")
    rig.sql("UPDATE rows SET version = 0 WHERE id = 2")
    rig.sql("INSERT INTO rows VALUES (5, 1, 'back')")
    assert wrong(checked(rig, upserting(rig), VERSIONS).comparison) == {"lost": 1, "changed": 1, "unexpected": 1}
    assert CliRunner().invoke(app, ["verify", pipeline]).exit_code == 1
