"""`onefold positions` without servers: its plan, and the checkpoint that it sets aside."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from harness.definitions import piped
from harness.errors import raises

from onefold.core import ConfigError, EpochRecord, EpochState, Positions, Range
from onefold.core.checks import present
from onefold.core.moves import Repeats
from onefold.core.protocol.effects import StoreFacts
from onefold.operate.positions import PartitionMove, planned
from onefold.operate.stopped import CheckpointFolder, StoppedPipeline, somebody
from onefold.sinks import SqlSink
from onefold.sources import KafkaSource
from onefold.store.checkpoint_store import CheckpointStore

FACTS = StoreFacts("store", 1, frozen=Positions.of({"t/0": 10, "t/1": 0}))


def test_a_plan_says_of_each_partition_what_is_passed_over_and_of_each_sink_what_comes_again() -> None:
    plan = planned(FACTS, [], Positions.of({"t/0": 15, "t/1": 0, "t/2": 2}), {"a": Repeats.DOUBLED})
    assert plan.partitions == (
        PartitionMove("t/0", 10, 15, 5, 0),
        PartitionMove("t/1", 0, 0, 0, 0),
        PartitionMove("t/2", 0, 2, 2, 0),
    )
    assert (plan.doubled(), [*plan.of_sinks(["a"])]) == ([], ["a: no record comes to it twice"])


def test_a_sink_is_doubled_only_where_records_come_to_it_again() -> None:
    facts = StoreFacts("store", 1, frozen=Positions.of({"t/0": 0}))
    stands = Positions.of({"t/0": 9})
    epoch = _epoch(facts, stands)
    plan = planned(epoch, [], Positions.of({"t/0": 4}), {"a": Repeats.DOUBLED, "b": Repeats.NEW, "c": Repeats.ABSORBED})
    assert plan.partitions == (PartitionMove("t/0", 9, 4, 0, 5),)
    assert plan.doubled() == ["a"]
    doubled, new, absorbed = plan.of_sinks(["a", "b", "c"])
    assert "would be there twice" in doubled and "is empty" in new and "change nothing" in absorbed


def _epoch(facts: StoreFacts, end: Positions) -> StoreFacts:
    span = Range(facts.frozen or Positions(), end)
    return replace(facts, last=EpochRecord("p", 1, 1, EpochState.COMPLETE, span, 1, "q", 0, "job", sinks=("a",)))


def test_a_checkpoint_is_set_aside_under_a_name_that_says_the_epoch_and_never_over_another(tmp_path: Path) -> None:
    for name in ("orders.until-epoch-7", "orders.until-epoch-7-2"):
        (tmp_path / "orders" / "commits").mkdir(parents=True)
        (tmp_path / "orders" / "commits" / "3").write_text("v1")
        checkpoint = CheckpointFolder(f"file:{tmp_path}/orders")
        assert checkpoint.is_there and not checkpoint.keeps_state
        checkpoint.set_aside(7)
        assert checkpoint.went_to == tmp_path / name
        assert (tmp_path / name / "commits" / "3").exists() and not checkpoint.is_there
        checkpoint.set_aside(7)  # once more, after an answer that was lost


def test_a_checkpoint_elsewhere_is_left_alone_and_one_with_state_is_told(tmp_path: Path) -> None:
    elsewhere = CheckpointFolder("s3://bucket/orders")
    elsewhere.set_aside(1)
    assert (elsewhere.is_elsewhere, elsewhere.is_there, elsewhere.keeps_state, elsewhere.went_to) == (
        True,
        False,
        False,
        None,
    )
    (tmp_path / "orders" / "state" / "0").mkdir(parents=True)
    assert CheckpointFolder(str(tmp_path / "orders")).keeps_state


def test_a_link_in_the_place_of_a_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "orders").symlink_to(tmp_path / "elsewhere")
    with raises(ConfigError, "checkpoint-not-set-aside"):
        CheckpointFolder(str(tmp_path / "orders")).set_aside(1)


def test_a_user_without_a_name_is_told_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)

    def nobody(_number: int) -> None:
        raise KeyError("no such user")  # as in a container that is given any number

    monkeypatch.setattr("pwd.getpwuid", nobody)
    assert somebody().startswith(f"uid-{os.getuid()}@")


def test_a_pipeline_that_its_store_does_not_know_or_that_went_on_meanwhile_is_not_changed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'rows.db'}"
    source = KafkaSource("t", bootstrap_servers="127.0.0.1:1")
    pipeline = piped("p", source=source, sinks=[SqlSink(url, "rows")], store=url)
    with closing(CheckpointStore(url)) as store, closing(StoppedPipeline(pipeline, "Nothing was moved")) as stopped:
        with raises(ConfigError, "pipeline-unknown", "'p'"):
            stopped.facts()
        store.acquire("p", 0)
        with raises(ConfigError, "pipeline-unknown", "'p'"):
            stopped.facts()  # as after a reset
        facts = present(stopped.find(), "it has a generation")
        stopped.refuse_changed(facts)
        store.acquire("p", 0)
        with raises(ConfigError, "pipeline-may-run"):
            stopped.refuse_changed(facts)
