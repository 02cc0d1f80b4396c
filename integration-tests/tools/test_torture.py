"""A short torture: real faults, and an audit that is exact. `make torture` is the long one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from harness.pipeline_drivers import Epochs
from rich.console import Console

from onefold.core import Committable, SinkKind
from onefold.core.invariants import Evidence, ResolveOnce
from onefold.sinks import KafkaSink
from onefold.trials.torture import TortureSettings, run_torture
from onefold.trials.torture.audit import Auditor
from onefold.trials.torture.destinations.kafka_reading import TopicLog, open_transactions, unstable
from onefold.trials.torture.destinations.kafka_topic import KafkaTopic
from onefold.trials.torture.history import HistoryLog
from onefold.trials.torture.torture_settings import PIPELINE
from onefold.trials.torture.watcher import Watcher
from onefold.trials.workload.workload_settings import LATE, PAIRS, SECONDS, Job

pytestmark = pytest.mark.servers

INVARIANTS = {"no-loss", "no-duplicate", "chain", "resolve-once", "fenced-never-decides", "nothing-in-doubt"}


# A seed whose first faults are quick ones: a kill of the driver and of Postgres, a worker that is paused, and one that
# outlives its executor. The other mode and delivery, and `local[*]`, are left to `make torture`.
@pytest.mark.soak
def test_after_a_few_faults_every_invariant_holds(tmp_path: Path) -> None:
    console, faults = Console(record=True, width=200), 4
    settings = TortureSettings(
        faults=faults,
        seed=27444,
        deliveries=("two_phase",),
        master="cluster",
        directory=tmp_path / "torture",
        mode="upsert",
    )
    assert run_torture(settings, console), console.export_text()
    lines = [json.loads(line) for line in (tmp_path / "torture" / "history.jsonl").read_text().splitlines()]
    (audit,) = [line for line in lines if line["event"] == "audit"]
    assert audit["rows"] > audit["records"] > audit["dead"] > 0, "orders, and what windows and joins make of them"
    assert audit["verdicts"].keys() == INVARIANTS
    assert [line["number"] for line in lines if line["event"] == "fault"] == list(range(1, faults + 1))
    assert {line["state"] for line in lines if line["event"] == "epoch"} >= {"complete"}
    assert lines[-1] == {**lines[-1], "event": "end", "rounds": 1, "exact": True}


# The broker that is killed is the source's, the destination's, and the one that holds every open transaction.
@pytest.mark.soak
def test_after_a_few_faults_every_invariant_holds_of_topics_too(tmp_path: Path) -> None:
    console, faults = Console(record=True, width=200), 3
    settings = TortureSettings(
        faults=faults,
        seed=92108,
        deliveries=("transactional",),
        directory=tmp_path / "torture",
        dead_letters="topic",
        orders_per_s=100,
    )
    assert run_torture(settings, console), console.export_text()
    lines = [json.loads(line) for line in (tmp_path / "torture" / "history.jsonl").read_text().splitlines()]
    (audit,) = [line for line in lines if line["event"] == "audit"]
    assert audit["records"] == audit["rows"] + audit["dead"] > 0
    assert audit["dead"] > 0
    assert audit["verdicts"].keys() == INVARIANTS | {"key-order"}
    struck = [line["kind"] for line in lines if line["event"] == "fault"]
    assert struck == ["kill Python worker", "kill Kafka", "kill producer"]
    assert lines[0]["destinations"] == ["sales", "dead_orders"]


# A seed whose first faults are quick ones: they kill a driver, its fork server, and workers that store their state.
@pytest.mark.slow
@pytest.mark.parametrize("state", ["memory", "rocksdb"])
def test_after_a_few_faults_on_a_flow_its_rows_its_totals_and_the_files_of_its_state_are_right(
    tmp_path: Path, state: str
) -> None:
    console, faults = Console(record=True, width=200), 4
    settings = TortureSettings(
        faults=faults, seed=128953, directory=tmp_path / "torture", runtime="engine", state=state
    )
    assert run_torture(settings, console), console.export_text()
    lines = [json.loads(line) for line in (tmp_path / "torture" / "history.jsonl").read_text().splitlines()]
    assert (lines[0]["runtime"], lines[0]["master"], lines[0]["state"]) == ("engine", None, state)
    assert lines[0]["destinations"] == ["orders", "totals", "windows", "sessions", PAIRS, SECONDS, *LATE, "state"]
    struck = [line["kind"] for line in lines if line["event"] == "fault"]
    assert struck == [
        "kill driver at a failpoint",
        "kill Python worker",
        "kill Python worker at a failpoint",
        "kill half a driver",
    ]
    (audit,) = [line for line in lines if line["event"] == "audit"]
    assert audit["rows"] > audit["records"] > audit["dead"] > 0, "orders, and totals of accounts"
    assert audit["verdicts"].keys() == INVARIANTS
    assert audit["unnamed_files"] == 0


# A seed whose first faults are a move that is killed once it is decided, and a whole one: to Spark and back.
@pytest.mark.slow
def test_a_pipeline_that_moves_to_spark_and_back_while_orders_come_has_each_once(tmp_path: Path) -> None:
    console = Console(record=True, width=200)
    settings = TortureSettings(faults=3, seed=4684, directory=tmp_path / "torture", runtime="both", orders_per_s=1000)
    assert run_torture(settings, console), console.export_text()
    lines = [json.loads(line) for line in (tmp_path / "torture" / "history.jsonl").read_text().splitlines()]
    struck = [line["kind"] for line in lines if line["event"] == "fault"]
    assert struck == ["kill a move at a failpoint", "move", "kill Python worker"]
    (audit,) = [line for line in lines if line["event"] == "audit"]
    assert audit["rows"] > audit["records"] > 0
    assert audit["verdicts"].keys() == INVARIANTS


# A seed whose first faults are cuts: Kafka is heard by nobody, Postgres doesn't hear this machine, and Kafka is paused.
@pytest.mark.soak
@pytest.mark.only_with_servers("containers", reason="cuts the networks of its servers")
def test_after_networks_were_cut_every_invariant_holds(tmp_path: Path) -> None:
    console, faults = Console(record=True, width=200), 3
    settings = TortureSettings(
        faults=faults,
        seed=14177,
        directory=tmp_path / "torture",
        orders_per_s=100,
        servers="containers",
    )
    assert run_torture(settings, console), console.export_text()
    lines = [json.loads(line) for line in (tmp_path / "torture" / "history.jsonl").read_text().splitlines()]
    assert lines[0]["servers"] == "containers"
    assert ":***@" in lines[0]["store"], "the password is not in the history"
    struck = [(line["kind"], line["target"]) for line in lines if line["event"] == "fault"]
    assert struck == [
        ("cut Kafka from everybody", "kafka from everybody, outgoing"),
        ("cut driver from Postgres", "postgres from this machine, incoming"),
        ("pause Kafka", "kafka"),
    ]
    (audit,) = [line for line in lines if line["event"] == "audit"]
    assert audit["records"] == audit["rows"] + audit["dead"] > 0
    assert audit["verdicts"].keys() == INVARIANTS
    assert (tmp_path / "torture" / "logs" / "postgres.log").exists()


def test_the_audit_sees_prepared_and_open_transactions_and_rows_in_a_stage(postgres_url: str, tmp_path: Path) -> None:
    job = Job("nowhere:1", postgres_url, "checkpoint", str(tmp_path), ("staged",), 10, exactly_once=True)
    history = HistoryLog(tmp_path / "history.jsonl")
    auditor = Auditor(job, Watcher(job, history))
    job.table().open(PIPELINE, pa.schema([("id", pa.int64())])).close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        assert auditor.leftovers() == ()
        connection.execute("BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'anything'")
        stage = connection.execute(
            "SELECT relname FROM pg_class WHERE relname LIKE 'onefold\\_stage\\_%' AND relkind = 'r'"
        ).fetchone()
        assert stage is not None
        insert = f'INSERT INTO onefold_sinks."{stage[0]}" (id, onefold_attempt) VALUES (1, 5), (2, 5)'
        connection.execute(insert.encode())
        found = auditor.leftovers()
        assert [(c.kind, c.handle, c.rows) for c in found] == [
            (SinkKind.TWO_PHASE, "anything", 0),
            (SinkKind.LAST_RESOURCE, f"{stage[0]}/5", 2),
        ]
        connection.execute("ROLLBACK PREPARED 'anything'")
    auditor.watcher.close()
    auditor.close()
    history.close()


def test_the_audit_of_a_topic_sees_what_is_committed_what_is_open_and_what_that_holds_back(
    kafka_server: Any, kafka_topic: Callable[..., str]
) -> None:
    servers, topic = kafka_server.bootstrap_servers, kafka_topic(partitions=2)
    producer = Producer({"bootstrap.servers": servers, "transactional.id": f"{topic}/1", "log_level": 0})
    producer.init_transactions(20)
    log = TopicLog(servers, topic, 2)
    for number, commit in enumerate((True, False, True)):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, b"k", partition=0, headers=[("id", b"x/0:1"), ("none", None)])
        producer.flush(20)
        (producer.commit_transaction if commit else producer.abort_transaction)(20)
        assert [int(record.value or b"") for record in log.read()] == [0, 2][: 1 + number // 2]
    record = log.records[-1]
    assert (record.partition, record.offset, record.key) == (0, 4, b"k"), "a marker stands behind each transaction"
    assert record.headers == (("id", b"x/0:1"), ("none", None))
    assert (open_transactions(servers, f"{topic}/"), unstable(servers, {topic: 2})) == ([], [])

    producer.begin_transaction()
    producer.produce(topic, b"3", partition=1)
    producer.flush(20)
    assert len(log.read()) == 2
    assert open_transactions(servers, f"{topic}/") == [f"{topic}/1"]
    assert open_transactions(servers, f"{topic}/2") == []
    assert unstable(servers, {topic: 2}) == [f"{topic}/1 stable up to 0 of 1"]
    producer.abort_transaction(20)


def test_the_audit_of_a_topic_finds_each_committed_transaction_under_the_handle_of_its_manifest(
    kafka_server: Any, kafka_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = kafka_topic(partitions=2)
    sink = KafkaSink(topic, bootstrap_servers=kafka_server.bootstrap_servers, ledger=f"{topic}-progress")
    destination = KafkaTopic(sink, 2, writes_through=False, compare=lambda *_: pytest.fail("nothing is compared"))
    schema = pa.schema([("id", pa.int64())])
    part = pa.record_batch({"id": [1]}, schema=schema)
    with Epochs(sink, schema, pipeline=PIPELINE, store=f"sqlite:///{tmp_path / 'store.db'}") as life:
        for _ in range(3):
            life.run([part], [part])
        epochs = life.store.history(PIPELINE)
    ledger = destination.ledger()
    assert ledger is not None and ledger.epoch == 3
    found = destination.committed(epochs, ledger)
    assert found is not None
    named = {(c.epoch, c.handle) for epoch in epochs for c in epoch.manifest}
    assert {(c.epoch, c.handle) for c in found.parts} == named
    assert len(named) == 6
    assert destination.leftovers() == ()
    stray = Committable(topic, SinkKind.TWO_PHASE, "somebody's", 1, 3, 0)
    for committed, violations in ((found.parts, 0), (found.parts[1:], 1), ((*found.parts, stray), 1)):
        assert len(ResolveOnce().violations(Evidence(epochs=tuple(epochs), committed=committed))) == violations
    destination.close()
