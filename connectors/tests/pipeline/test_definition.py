"""A definition as a value: what it refuses, and where it keeps what the pipeline needs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest
from harness.errors import raises

from onefold.core import ConfigError, Sink
from onefold.core.store.checkpoint_store import CheckpointStore
from onefold.pipeline import Definition, Restart, SparkSettings, Transform, Trigger
from onefold.sinks import HBaseSink, KafkaSink, PostgresSink
from onefold.sources import KafkaSource

SOURCE = KafkaSource("orders", bootstrap_servers="localhost:9092")
SINK = KafkaSink("out", bootstrap_servers="localhost:9092")


def definition(directory: Path, name: str = "orders", **more: object) -> Definition:
    options: dict[str, object] = {"source": SOURCE, "sinks": [SINK], "directory": str(directory), **more}
    return Definition(name, **options)  # type: ignore[arg-type]


def test_the_first_start_makes_the_folder_of_the_default_store_and_nothing_before_does(tmp_path: Path) -> None:
    made = definition(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with closing(CheckpointStore(made.store_url)) as store:
        assert store.id()
    assert (tmp_path / ".onefold" / "orders.db").exists()


def test_a_folder_that_cannot_be_made_is_one_error(tmp_path: Path) -> None:
    made = definition(tmp_path / "gone")
    with (
        closing(CheckpointStore(made.store_url)) as store,
        raises(ConfigError, "database-access-denied"),
    ):
        store.id()


@pytest.mark.parametrize("folder", ["plain", "what?", "a%2Fb", "a#b", "a b"])
def test_the_default_store_is_in_the_files_own_folder_whatever_that_is_called(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    made = definition(tmp_path / folder, "a?b%2Fc")
    with closing(CheckpointStore(made.store_url)) as store:
        assert store.id()
    assert (tmp_path / folder / ".onefold" / "a?b%2Fc.db").exists()
    assert [one.name for one in tmp_path.iterdir()] == [folder]


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "a word of output_mode": (lambda: definition(Path(), output_mode="updte"), "'append' or 'update', not 'updte'"),
    "a trigger": (lambda: definition(Path(), trigger="x"), "trigger is a Trigger, not of type str"),
    "Spark's settings": (lambda: definition(Path(), spark=3), "spark is a SparkSettings, not of type int"),
    "the restart's policy": (lambda: definition(Path(), restart={}), "restart is a Restart, not of type dict"),
    "one sink": (lambda: definition(Path(), sinks=SINK), "sinks is a list of Sinks, not of type KafkaSink"),
    "no sink": (lambda: definition(Path(), sinks=[3]), "sinks is a list of Sinks"),
    "a text for sinks": (lambda: definition(Path(), sinks="x"), "sinks is a list of Sinks"),
    "a source": (lambda: definition(Path(), source="orders"), "source is a KafkaSource, not of type str"),
    "a name": (lambda: definition(Path(), 3), "name is a text, not of type int"),  # type: ignore[arg-type]
    "a transformation": (lambda: definition(Path(), transform="SELECT 1"), "transform is a Transform, not of type str"),
    "a number": (lambda: definition(Path(), stop_within_s="60"), "stop_within_s is a number, not of type str"),
    "no number": (lambda: definition(Path(), patience_s=None), "patience_s is a number, not of type NoneType"),
    "a truth": (lambda: definition(Path(), require_tls="no"), "require_tls is true or false, not of type str"),
    "a checkpoint": (lambda: definition(Path(), checkpoint=3), "checkpoint is a text, not of type int"),
    "a word of a strategy": (lambda: Restart(strategy="off"), "strategy is one of exponential, .* not 'off'"),  # type: ignore[arg-type]
    "a whole number": (lambda: Restart(attempts=True), "attempts is a whole number from 1 on, not True"),
    "a function": (lambda: Transform(arrow="x"), "arrow is a function, not of type str"),  # type: ignore[arg-type]
    "no time": (lambda: definition(Path(), stop_within_s=float("nan")), "stop_within_s is a number of seconds"),
    "a time without an end": (lambda: Restart(delay_s=float("inf")), "delay_s is a number of seconds above 0, a year"),
    "a time that has passed": (lambda: definition(Path(), patience_s=-5), "patience_s is a number of seconds above 0"),
    "a setting": (lambda: SparkSettings(settings={"spark.x": 3}), "settings is a mapping"),  # type: ignore[dict-item]
    "a time": (lambda: Trigger(processing_time=10), "processing_time is a text"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", WRONG)
def test_a_value_of_another_type_and_a_word_that_is_none_are_refused(case: str) -> None:
    make, says = WRONG[case]
    with pytest.raises(ConfigError, match=says) as refused:
        make()
    assert refused.value.code == "option-value"


def test_rows_go_through_spark_where_a_sink_needs_those_of_a_key_in_one_task(tmp_path: Path) -> None:
    def is_direct(sink: Sink, **more: object) -> bool:
        return definition(tmp_path, sinks=[sink], **more).is_direct

    def cells(**more: bool) -> HBaseSink:
        return HBaseSink("localhost:9090", "cells", row_key="id", family="f", **more)

    def rows(delivery: Literal["auto", "two_phase", "staged"]) -> PostgresSink:
        return PostgresSink(
            "postgresql://shop@localhost/shop", "t", mode="upsert", key="id", order="at", delivery=delivery
        )

    assert is_direct(SINK)
    assert not is_direct(cells()) and is_direct(cells(repartition=False))
    assert not is_direct(cells(), transform=Transform(arrow=lambda batch: [batch]))
    assert not is_direct(rows("two_phase")) and is_direct(rows("staged")) and is_direct(rows("auto"))
