"""Checkpoints, stores and destinations that were deleted, swapped or restored: a clear error, then an exact way out."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from harness.errors import raises
from harness.support import SCHEMA, Rig
from pyspark.sql import DataFrame

from onefold.core import CheckpointMismatch, ConfigError, Damaged, DataLoss
from onefold.core.protocol.epoch import Outcome
from onefold.spark.flows.flow_writer import FlowWriter

pytestmark = pytest.mark.servers


def replayed(outcomes: list[Outcome]) -> list[bool]:
    return [outcome.replayed for outcome in outcomes]


class Chain:
    """One way to keep the epochs: a delivery, and where its store is."""

    def __init__(self, rig: Rig, delivery: str, store: str | None) -> None:
        self.rig, self.delivery, self.store = rig, delivery, store

    def pipeline(self, name: str = "test", **reading: Any) -> FlowWriter:
        source = self.rig.source(**{"at_most": 300, **reading})
        return self.rig.pipeline(self.rig.sink(self.delivery), name=name, source=source, store=self.store)

    def run(self, checkpoint: str = "checkpoint", at_most: int = 300) -> list[Outcome]:
        return self.rig.run(self.pipeline(at_most=at_most), checkpoint)

    def resume(self, checkpoint: str, *, adopt_ledger: bool = False) -> list[Outcome]:
        """The way out that the errors name: a new, empty checkpoint directory and starting_offsets='ledger'."""
        assert not Path(self.rig.checkpoint(checkpoint)).exists()
        pipeline = self.pipeline(at_most=250, starting_offsets="ledger")
        if adopt_ledger:
            pipeline.recover(adopt_ledger=True)
        return self.rig.run(pipeline, checkpoint)


@pytest.fixture(params=["two_phase", "staged", pytest.param("sqlite", marks=pytest.mark.soak)])
def chain(request: pytest.FixtureRequest, rig: Rig) -> Chain:
    if request.param == "sqlite":
        return Chain(rig, "two_phase", rig.sqlite)
    return Chain(rig, request.param, None)


@pytest.mark.slow
def test_a_deleted_checkpoint_with_the_same_batches_is_replayed_without_writing_anything_twice(rig: Rig) -> None:
    chain = Chain(rig, "two_phase", None)
    rig.put(600)
    assert replayed(chain.run()) == [False, False]
    shutil.rmtree(rig.checkpoint())
    rig.put(300)
    assert replayed(chain.run()) == [True, True, False]
    rig.assert_exact()


@pytest.mark.slow
def test_a_deleted_checkpoint_with_other_batches_is_refused_and_resumes_from_the_ledger(chain: Chain) -> None:
    rig = chain.rig
    rig.put(600)
    chain.run()
    shutil.rmtree(rig.checkpoint())
    rig.put(200)
    with pytest.raises(CheckpointMismatch, match=r"written already.*new, empty checkpoint.*starting_offsets='ledger'"):
        chain.run(at_most=250)
    assert len(rig.rows()) == 600
    chain.resume("second")
    rig.assert_exact()
    rig.put(300)
    chain.run("second")
    rig.assert_exact()


@pytest.mark.soak
def test_an_older_copy_of_the_checkpoint_goes_on_where_the_batches_are_the_same(rig: Rig) -> None:
    chain = Chain(rig, "staged", None)
    rig.put(300)
    chain.run()
    shutil.copytree(rig.checkpoint(), rig.checkpoint("copy"))
    rig.put(600)
    chain.run()
    assert replayed(chain.run("copy")) == [True, True]
    rig.put(100)
    chain.run("copy")
    rig.assert_exact()


@pytest.mark.slow
def test_an_older_copy_of_the_checkpoint_with_other_batches_is_refused_and_resumes_from_the_ledger(rig: Rig) -> None:
    chain = Chain(rig, "two_phase", None)
    rig.put(300)
    chain.run()
    shutil.copytree(rig.checkpoint(), rig.checkpoint("copy"))
    rig.put(600)
    chain.run()
    with pytest.raises(CheckpointMismatch, match=r"older copy.*starting_offsets='ledger'"):
        chain.run("copy", at_most=250)
    assert len(rig.rows()) == 900
    rig.put(100)
    chain.resume("third")
    rig.assert_exact()


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [pytest.param(True, marks=pytest.mark.soak), False], ids=["ahead", "behind"])
def test_the_checkpoint_of_another_pipeline_is_refused_and_resumes_from_the_ledger(rig: Rig, ahead: bool) -> None:
    mine, other = Chain(rig, "two_phase", None), rig.pipeline(rig.sink(table="others"), name="other")
    rig.put(300)
    if ahead:
        mine.run()
        rig.put(300)
        rig.run(other, checkpoint="others")
    else:
        rig.run(other, checkpoint="others")
        rig.put(300)
        mine.run()
    rig.put(300)
    kind = DataLoss if ahead else CheckpointMismatch
    with pytest.raises(kind, match=r"another pipeline.*starting_offsets='ledger'"):
        mine.run("others", at_most=200)
    mine.resume("second")
    rig.assert_exact()


@pytest.mark.slow
def test_a_checkpoint_of_another_topic_is_refused(rig: Rig, kafka_topic: object) -> None:
    assert callable(kafka_topic)
    chain = Chain(rig, "two_phase", None)
    rig.put(300)
    chain.run()
    rig.topic = kafka_topic(partitions=4)
    with raises(ConfigError, "positions-not-read", "'test'"):
        chain.run()
    with pytest.raises(DataLoss, match=r"ends beyond the recorded end.*another pipeline's"):
        rig.run(chain.pipeline("second"))


@pytest.mark.slow
def test_an_older_copy_of_the_store_is_refused_until_the_newer_one_is_back_or_the_ledger_adopted(rig: Rig) -> None:
    chain, store = Chain(rig, "two_phase", rig.sqlite), rig.directory / "store.db"
    rig.put(300)
    chain.run()
    shutil.copy(store, rig.directory / "older.db")
    rig.put(600)
    chain.run()
    shutil.copy(store, rig.directory / "newer.db")
    shutil.copy(rig.directory / "older.db", store)
    rig.put(300)
    with raises(CheckpointMismatch, "sink-ahead-of-store", "adopt_ledger=True"):
        chain.run()
    assert len(rig.rows()) == 900
    shutil.copy(rig.directory / "newer.db", store)
    chain.run()
    rig.assert_exact()

    shutil.copy(rig.directory / "older.db", store)
    rig.put(300)
    chain.resume("second", adopt_ledger=True)
    rig.assert_exact()
    rig.put(300)
    chain.run("second")
    rig.assert_exact()


@pytest.mark.slow
def test_a_lost_store_is_refused_and_adopts_the_ledger(chain: Chain) -> None:
    rig = chain.rig
    rig.put(600)
    chain.run()
    if chain.store is None:
        rig.sql("DROP TABLE onefold_sinks.onefold_store, onefold_sinks.onefold_pipelines, onefold_sinks.onefold_epochs")
    else:
        (rig.directory / "store.db").unlink()
    rig.put(300)
    with raises(CheckpointMismatch, "another-store", "adopt_ledger=True"):
        chain.run()
    assert len(rig.rows()) == 600
    chain.resume("second", adopt_ledger=True)
    rig.assert_exact()
    rig.put(300)
    chain.run("second")
    rig.assert_exact()


def copy_tables(rig: Rig, *tables: str) -> None:
    for table in tables:
        rig.sql(f"CREATE TABLE backup_{table.replace('.', '_')} AS TABLE {table}")


def restore_tables(rig: Rig, *tables: str) -> None:
    for table in tables:
        rig.sql(f"TRUNCATE {table}")
        rig.sql(f"INSERT INTO {table} TABLE backup_{table.replace('.', '_')}")


@pytest.mark.slow
def test_an_older_copy_of_the_destination_is_data_loss_and_starts_over_under_a_new_name(rig: Rig) -> None:
    chain = Chain(rig, "two_phase", rig.sqlite)
    rig.put(300)
    chain.run()
    tables = ("rows", "onefold_sinks.onefold_ledger", "onefold_sinks.onefold_parts")
    copy_tables(rig, *tables)
    rig.put(600)
    chain.run()
    restore_tables(rig, *tables)
    named = "epoch 1, but epoch 3", "older copy", "anew, give the flow another name"
    for checkpoint in ("checkpoint", "new"):
        with raises(DataLoss, "destination-older-copy", *named):
            chain.run(checkpoint)
    rig.sql("TRUNCATE rows")
    rig.run(chain.pipeline("second"), checkpoint="second")
    rig.assert_exact()


@pytest.mark.slow
@pytest.mark.parametrize("delivery", [pytest.param("two_phase", marks=pytest.mark.soak), "staged"])
def test_an_older_copy_of_store_and_destination_together_resumes_from_the_ledger(rig: Rig, delivery: str) -> None:
    chain = Chain(rig, delivery, None)
    books = ("onefold_sinks.onefold_ledger", "onefold_sinks.onefold_parts")
    tables = ("rows", *books, "onefold_sinks.onefold_epochs", "onefold_sinks.onefold_pipelines")
    rig.put(300)
    chain.run()
    copy_tables(rig, *tables)
    rig.put(600)
    chain.run()
    restore_tables(rig, *tables)
    rig.put(300)
    with pytest.raises(DataLoss, match=r"beyond the recorded end.*older copy.*starting_offsets='ledger'"):
        chain.run()
    assert len(rig.rows()) == 300
    chain.resume("second")
    rig.assert_exact()


@pytest.mark.soak
def test_two_pipelines_into_one_table_keep_their_own_chains(rig: Rig) -> None:
    first, second = Chain(rig, "two_phase", None), Chain(rig, "two_phase", None)
    rig.put(600)
    first.run()
    rig.run(second.pipeline("second", at_most=200), "seconds")
    shutil.rmtree(rig.checkpoint())
    rig.put(300)
    assert replayed(first.run()) == [True, True, False]
    rig.run(second.pipeline("second", at_most=200), "seconds")
    assert rig.rows() == sorted(rig.sent * 2)
    rig.assert_nothing_in_doubt()


def counts(df: DataFrame) -> DataFrame:
    return df.selectExpr("n % 7 AS id").groupBy("id").count().withColumnRenamed("count", "n")


@pytest.mark.slow
def test_a_stateful_query_does_not_resume_from_the_ledger_without_its_state(rig: Rig) -> None:
    """Its counts would begin at nothing again; from the first position on, it rebuilds them."""

    def pipeline(**reading: Any) -> FlowWriter:
        sink = rig.sink(mode="upsert", key="id", order="onefold_epoch")
        source = rig.source(**reading)
        return rig.pipeline(sink, source=source, change=lambda rows: rows.spark_dataframe(counts, SCHEMA, "update"))

    rig.put(600)
    rig.run(pipeline())
    written = rig.rows()
    shutil.rmtree(rig.checkpoint())
    rig.put(300)
    with raises(CheckpointMismatch, "state-missing", "give the flow another name"):
        rig.run(pipeline(starting_offsets="ledger"), "second")
    assert rig.rows() == written
    assert replayed(rig.run(pipeline(), "third")) == [True, True, False]
    assert dict(rig.rows()) == {k: sum(n % 7 == k for _, n in rig.sent) for k in range(7)}


@pytest.mark.slow
def test_a_checkpoint_whose_destination_was_made_anew_is_refused_even_without_new_records(rig: Rig) -> None:
    chain = Chain(rig, "staged", None)
    rig.put(300)
    chain.run()
    rig.sql("DROP TABLE rows; DROP SCHEMA onefold_sinks CASCADE")
    with pytest.raises(DataLoss, match=r"ends beyond the recorded end.*new, empty checkpoint directory and an empty"):
        chain.run()
    chain.run("second")
    rig.assert_exact()


@pytest.mark.slow
def test_an_epoch_that_somebody_damaged_stops_the_start_until_it_is_mended_and_accepted(rig: Rig) -> None:
    chain = Chain(rig, "two_phase", None)
    rig.put(300)
    chain.run()
    rig.sql(
        "UPDATE onefold_sinks.onefold_epochs SET state = 'damaged', error = 'a part was rolled back' WHERE epoch = 1"
    )
    rig.put(100)
    with raises(Damaged, "epoch-damaged", "accept_damage=1"):
        chain.run()
    accepting = chain.pipeline()
    accepting.recover(accept_damage=1)
    rig.run(accepting)
    chain.run()
    rig.assert_exact()
