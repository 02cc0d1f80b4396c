"""Batch runs without Spark: the store and the sink are as they are."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness.errors import raises
from pyspark.sql.pandas.types import from_arrow_schema

from onefold.core import Committable, ConfigError, DataLoss, LedgerEntry
from onefold.core.extras import to_install
from onefold.core.testing import ModelTwoPhaseSink
from onefold.sinks import HBaseSink
from onefold.sinks.staged.upsert import Changes
from onefold.spark.formats import registration
from onefold.spark.formats.batch_writes import BatchWrites, RunTarget
from onefold.spark.formats.hbase_source import OnefoldHBaseDataSource
from onefold.spark.formats.kafka_source import OnefoldKafkaDataSource
from onefold.spark.formats.postgres_format import OnefoldPostgresDataSource
from onefold.spark.formats.sql_format import OnefoldSqlDataSource
from onefold.spark.runtime.batch import BatchOutcome, OpenedRun, decide_run, open_run
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.job.session import Session, task_of

SCHEMA = pa.schema([("id", pa.string())])


class Rig:
    """Any number of processes of one pipeline, over one sink."""

    def __init__(self, store: Path) -> None:
        self.sink = ModelTwoPhaseSink("sink")
        self.store = CheckpointStore(f"sqlite:///{store}")

    def session(self) -> Session:
        return Session("p", [self.sink], self.store, patience_s=0)

    def open(self, session: Session, run: str) -> OpenedRun:
        opened = open_run(session, run, SCHEMA)
        assert isinstance(opened, OpenedRun)
        return opened

    def write(self, opened: OpenedRun, row: str) -> tuple[Committable, ...]:
        writer = self.sink.writer(task_of(opened.record))
        writer.write(pa.record_batch({"id": [row]}))
        prepared = writer.prepare()
        assert prepared is not None
        return (prepared,)

    def run(self, run: str) -> BatchOutcome:
        session = self.session()
        opened = self.open(session, run)
        return decide_run(session, opened, self.write(opened, run))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    found = Rig(tmp_path / "store.db")
    yield found
    found.store.close()


def test_a_finished_run_that_is_run_again_fences_nobody_who_decides_at_that_moment(rig: Rig) -> None:
    rig.run("first")
    other = rig.session()
    opened = rig.open(other, "second")
    manifest = rig.write(opened, "second")
    decided: list[BatchOutcome] = []

    class Looks(Session):
        """The other run decides between its look at the store and the one at the sink."""

        def ledgers(self) -> dict[str, LedgerEntry | None]:
            if not decided:
                decided.append(decide_run(other, opened, manifest))
            return super().ledgers()

    again = open_run(Looks("p", [rig.sink], rig.store, patience_s=0), "first", SCHEMA)
    assert again == BatchOutcome("first", 1, 1, replayed=True)
    assert decided == [BatchOutcome("second", 2, 1, replayed=False)]
    assert rig.store.facts("p").generation == 2, "nobody was taken over"
    assert rig.sink.shown() == {"first": 1, "second": 1}


def test_where_store_and_sink_contradict_each_other_a_finished_run_starts_and_says_so(rig: Rig) -> None:
    rig.run("first")
    rig.sink.entry = None
    with raises(DataLoss, "destination-older-copy"):
        open_run(rig.session(), "first", SCHEMA)


RUN = {"pipeline": "p", "run": "r"}
STORE = {"store": "postgresql://me:sesame@here/shop"}
POSTGRES = {"url": "postgresql://me:sesame@here/shop", "table": "t", **RUN}
KAFKA = {"kafka.bootstrap.servers": "h:1", "topic": "t", **RUN, **STORE}
HBASE = {"servers": "h:1", "table": "t", "rowKey": "k", "family": "f", "repartition": "false", **RUN, **STORE}
SQL = {"url": "mariadb://me:sesame@here/shop", "table": "t", **RUN}
FORMATS: dict[type[BatchWrites], dict[str, str]] = {
    OnefoldPostgresDataSource: POSTGRES,
    OnefoldKafkaDataSource: KAFKA,
    OnefoldHBaseDataSource: HBASE,
    OnefoldSqlDataSource: SQL,
}
IDS = from_arrow_schema(SCHEMA)
each_format = pytest.mark.parametrize("format_", FORMATS, ids=lambda each: each.name())


def settings_of(format_: type[BatchWrites], **more: str) -> Any:
    """As the sink was told them that the format makes."""
    sink: Any = format_(FORMATS[format_] | more).target().sink
    return sink.settings


def test_a_format_has_an_option_for_all_that_its_sink_can_be_told() -> None:
    given = {"evolve": "True", "role": "owner", "lockTimeoutS": "2.5", "KEY": "a, b", "order": "v", "rejectsMax": "7"}
    postgres = settings_of(OnefoldPostgresDataSource, **given)
    assert (postgres.evolve, postgres.role, postgres.lock_timeout_s, postgres.rejects_max) == (True, "owner", 2.5, 7)
    assert postgres.changes == Changes(("a", "b"), ("v",))
    plain = settings_of(OnefoldPostgresDataSource)
    assert (plain.delivery, plain.mode) == ("staged", "append")

    client = {"kafka.security.protocol": "SASL_SSL", "SECRET.kafka.sasl.password": "sesame"}
    sasl = {"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.username": "me"}
    kafka = settings_of(OnefoldKafkaDataSource, outageMaxS="5", key="a, b", headers="h", **client, **sasl)
    assert (kafka.bootstrap_servers, kafka.outage_s, kafka.key, kafka.headers) == ("h:1", 5, ("a", "b"), ("h",))
    assert kafka.client_config["sasl.password"] == "sesame"

    merge = {"mode": "Rolling", "merge": "n = sum, id = max", "columns": "n = f:x integer", "timeoutS": "3"}
    hbase = settings_of(OnefoldHBaseDataSource, **merge)
    told = HBaseSink(
        "h:1",
        "t",
        row_key="k",
        family="f",
        columns={"n": "f:x integer"},
        mode="rolling",
        merge={"n": "sum", "id": "max"},
    )
    assert (hbase.mode, hbase.declared, hbase.hbase.timeout_s) == (told.settings.mode, told.settings.declared, 3)
    assert settings_of(OnefoldHBaseDataSource, mode="rolling", merge='{"n": "sum", "id": "max"}').mode == hbase.mode

    assert settings_of(OnefoldSqlDataSource, key="a", order="v").changes == Changes(("a",), ("v",))


@each_format
def test_options_that_are_wrong_are_refused_by_the_names_that_they_have_in_spark(format_: type[BatchWrites]) -> None:
    options = FORMATS[format_]

    def target(**more: str) -> RunTarget:
        return format_(options | more).target()

    with raises(ConfigError, "option-unknown", "'patienceT'", "'patienceS'", format_.name()):
        target(patienceT="1")
    with raises(ConfigError, "option-value", "patienceS is a number"):
        target(patienceS="x")
    for name in options.keys() - {"store", "family", "repartition"}:
        with raises(ConfigError, "option-missing", name):
            target(**{name: ""})
    with raises(ConfigError, "option-value", "run="):
        target(run=" ")
    with raises(ConfigError, "sqlite-relative"):
        target(store="sqlite:///runs.db")
    with raises(ConfigError, "append-only", format_.name()):
        format_(options).writer(IDS, overwrite=True)
    with raises(ConfigError, "streaming-not-supported", format_.name(), "EpochWriter"):
        format_(options).streamWriter(IDS, overwrite=False)


WRONG: list[tuple[type[BatchWrites], dict[str, str], str, str]] = [
    (OnefoldPostgresDataSource, {"rejectsMax": "x"}, "option-value", "rejectsMax is a number"),
    (OnefoldPostgresDataSource, {"lockTimeoutS": "0"}, "option-value", "lockTimeoutS must be above 0"),
    (OnefoldPostgresDataSource, {"mode": "upsert"}, "option-unknown", "'mode'"),
    (
        OnefoldPostgresDataSource,
        {"key": "k", "order": "v", "delivery": "two_phase"},
        "rows-unpartitioned",
        "delivery=staged",
    ),
    (OnefoldKafkaDataSource, {"store": ""}, "option-missing", "'store'"),
    (OnefoldKafkaDataSource, {"transactionTimeoutS": "0"}, "option-value", "transactionTimeoutS=0 must be"),
    (OnefoldKafkaDataSource, {"kafka.acks": "1"}, "option-not-allowed", "acks"),
    (OnefoldKafkaDataSource, {"delivery": "keyed", "id": "a, b"}, "rows-unpartitioned", "repartition=false"),
    (OnefoldHBaseDataSource, {"repartition": "true"}, "rows-unpartitioned", "repartition=false"),
    (OnefoldHBaseDataSource, {"merge": "replace"}, "options-conflict", "not to mode='row_key'"),
    (OnefoldHBaseDataSource, {"mode": "rolling", "merge": "n = sum, id"}, "option-value", "merge: 'id' is not as in"),
    (OnefoldHBaseDataSource, {"deleteMode": "real"}, "option-missing", "deleteMode= says"),
    (OnefoldSqlDataSource, {"url": "sqlite:///here.db"}, "sqlite-relative", "url"),
    (OnefoldSqlDataSource, {"deliver": "direct"}, "option-unknown", "onefold_sql"),
]


@pytest.mark.parametrize(("format_", "wrong", "code", "says"), WRONG)
def test_what_a_sink_refuses_its_format_refuses(
    format_: type[BatchWrites], wrong: dict[str, str], code: str, says: str
) -> None:
    with raises(ConfigError, code, says):
        format_(FORMATS[format_] | wrong).target()


def test_what_is_written_only_says_where_to_read_it() -> None:
    with raises(ConfigError, "reading-not-supported", "onefold_postgres"):
        OnefoldSqlDataSource(SQL).schema()


@each_format
def test_what_a_writer_carries_shows_no_password(format_: type[BatchWrites]) -> None:
    target = format_(FORMATS[format_]).target()
    assert "sesame" not in repr(target)
    assert "sesame" in target.store
    assert pickle.loads(pickle.dumps(target)).store == target.store


def test_a_format_whose_packages_are_missing_says_so_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    stand_in = registration._missing("onefold_kafka", "confluent_kafka")
    assert stand_in.name() == "onefold_kafka"
    with raises(ConfigError, "package-missing", "confluent_kafka", to_install("kafka")):
        stand_in({})
