"""`onefold doctor`: what a pipeline guarantees, held against real servers as they are set up."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from harness.definitions import named, piped
from harness.kafka.life import SCHEMA, batches
from harness.kafka.topics import in_order
from harness.pipeline_drivers import Epochs, MakeWorld
from psycopg.conninfo import make_conninfo
from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from onefold.cli.main import app
from onefold.core import Positions, Sink, TaskId
from onefold.core.findings import Level
from onefold.operate.doctor import Diagnosis, diagnose
from onefold.pipeline import Pipeline
from onefold.pipeline.contents import FileFlow, Reads
from onefold.sinks import KafkaSink, PostgresSink, SqlSink
from onefold.sources import KafkaSource
from onefold.store.checkpoint_store import CheckpointStore

pytestmark = pytest.mark.servers

Topic = Callable[..., str]
MakeSource = Callable[..., KafkaSource]
ALWAYS = {"no-loss", "no-duplicate", "chain", "resolve-once", "fenced-never-decides", "nothing-in-doubt"}


def holding(diagnosis: Diagnosis) -> set[str]:
    """Of its one sink."""
    (sink,) = diagnosis.sinks
    return {name for name, why in diagnosis.invariants(sink).items() if not why}


def says(diagnosis: Diagnosis, *levels: Level) -> str:
    return "\n".join(finding.says for finding in diagnosis.findings if not levels or finding.level in levels)


def examined_open(source: KafkaSource, sink: Sink, *options: str, **more: Any) -> Result:
    """The same of a source whose schema only a start finds, as a file has it."""
    flow = FileFlow("p", [Reads(source)], [], [sink])
    return CliRunner().invoke(app, ["doctor", named(Pipeline(flow, **more)), *options])


def examined(source: KafkaSource, sink: Sink, *options: str, **more: Any) -> Result:
    """What the command says of a pipeline from there into that sink."""
    return CliRunner().invoke(app, ["doctor", named(piped("p", source=source, sinks=[sink], **more)), *options])


def in_spark(query: Any, schema: str, **more: Any) -> Callable[[Any], Any]:
    """What has Spark make the rows by this SELECT, or function."""
    if isinstance(query, str):
        return lambda rows: rows.spark_sql(query, schema=schema, **more)
    return lambda rows: rows.spark_dataframe(query, schema=schema, **more)


@pytest.fixture
def orders(kafka_server: Any, kafka_topic: Topic) -> MakeSource:
    """`orders("id long")`: a source of a topic that is there."""

    def make(schema: str, **more: Any) -> KafkaSource:
        servers = kafka_server.bootstrap_servers
        return KafkaSource(kafka_topic(partitions=1), bootstrap_servers=servers, format="json", schema=schema, **more)

    return make


@pytest.fixture
def progress() -> str:
    """The name of a ledger topic that is not there."""
    return f"progress-{uuid.uuid4().hex[:12]}"


@pytest.mark.usefixtures("spark")
def test_a_kafka_sink_that_runs_is_found_well_with_the_outage_that_it_survives_and_whom_it_holds_back(
    kafka_server: Any, kafka_topic: Topic, progress: str, tmp_path: Path, orders: MakeSource
) -> None:
    def read_as(schema: str) -> KafkaSource:
        return orders(schema, forget_topics=["t"])  # of which the life has positions

    topic, store = kafka_topic(partitions=3), f"sqlite:///{tmp_path / 'store.db'}"
    sink = KafkaSink(topic, bootstrap_servers=kafka_server.bootstrap_servers, ledger=progress)
    before = diagnose("p", [sink], store=store)
    assert before.holds and holding(before) == ALWAYS
    assert "is made by the first start" in says(before) and not (tmp_path / "store.db").exists()
    assert progress not in AdminClient({"bootstrap.servers": kafka_server.bootstrap_servers}).list_topics().topics

    with Epochs(sink, SCHEMA, store=store) as life:
        life.run(*batches(0))
        elsewhere = KafkaSink(topic, bootstrap_servers=kafka_server.bootstrap_servers, ledger=f"{progress}-not")
        gone = diagnose("p", [elsewhere], store=store)
        assert "has no ledger, but epoch 1 was completed there" in says(gone, Level.PROBLEM)
        assert "no-loss" not in holding(gone)
        task = TaskId("p", 1, 2, 1, uuid.uuid4())
        writer = sink.writer(task)
        writer.write(batches(1)[0])
        prepared = writer.prepare()
        assert prepared is not None
        inferred = examined_open(read_as("infer"), sink, "--json", store=store)
        blind = examined_open(read_as("infer"), sink, store=store)
        shown = examined(read_as("id long"), sink, store=store)
        life.driver.committers[sink.name].abort([prepared])
    assert inferred.exit_code == 0, inferred.output
    found = json.loads(inferred.stdout)
    (only,) = found["sinks"]
    assert (only["mode"], only["kind"], found["holds"]) == ("transactional", "two-phase", True)
    spark, checkpoint, columns = found["runtime"]
    assert spark["level"] == "fine" and "Spark 4" in spark["says"]
    assert checkpoint["level"] == "fine" and "checkpoint" in checkpoint["says"]
    assert columns["level"] == "unchecked"
    assert not found["whole"] and blind.exit_code == 0
    assert (
        "the source's schema is found by the first start" in blind.stdout and "the guarantee holds" not in blind.stdout
    )
    assert only["invariants"]["atomic-epoch"] == "readers may see an epoch part by part"
    assert {name for name, verdict in only["invariants"].items() if verdict == "holds"} == ALWAYS
    text = "\n".join(finding["says"] for finding in (*found["store"], *only["findings"]))
    for told in (
        "transaction.version is 2",
        "transaction_timeout_s=900 is all that the brokers allow",
        "an outage of 300 s between an epoch's decision and its commit is survived",
        "the longest outage that all of them survive",
        "or 910 s where it is not",
        "open transactions of this sink: 1,",
        f"readers of {topic!r} are held back now, by 5 offsets in",
        "epoch 1 is complete, generation 1",
    ):
        assert told in text, told
    assert shown.exit_code == 0 and "the guarantee holds" in shown.stdout
    assert "fenced-never-decides" in shown.stdout and "read_committed, and see an epoch task by task" in shown.stdout


def test_settings_that_lose_what_was_acknowledged_break_no_loss(
    kafka_server: Any, kafka_topic: Topic, progress: str
) -> None:
    def found(topic: str, progress: str = progress, **more: Any) -> Diagnosis:
        servers = kafka_server.bootstrap_servers
        return diagnose("p", [KafkaSink(topic, bootstrap_servers=servers, ledger=progress, **more)])

    unclean = found(kafka_topic(config={"unclean.leader.election.enable": "true"}))
    assert not unclean.holds and holding(unclean) == ALWAYS - {"no-loss"}
    assert "unclean.leader.election.enable=false" in says(unclean, Level.PROBLEM)
    forgets = found(kafka_topic(), kafka_topic(partitions=1, config={"cleanup.policy": "delete"}))
    assert "no-loss" not in holding(forgets)
    assert "cleanup.policy=compact" in says(forgets, Level.PROBLEM)
    stuck = found(kafka_topic(config={"min.insync.replicas": "2"}))
    assert "can never be written to" in says(stuck, Level.PROBLEM)
    late = found(kafka_topic(), transaction_timeout_s=901)
    assert "above the brokers' transaction.max.timeout.ms (900 s)" in says(late, Level.PROBLEM)
    assert "has no topic 'nowhere'" in says(found("nowhere", timeout_s=1), Level.PROBLEM)
    keyed = found(kafka_topic(config={"cleanup.policy": "compact"}), delivery="keyed", id="id")
    assert keyed.holds and "takes none without a key" in says(keyed, Level.CAUTION)
    assert "transaction" not in says(keyed)


def test_a_postgres_sinks_delivery_comes_with_its_reason_and_the_slots_that_are_free(
    postgres_url: str, make: MakeWorld
) -> None:
    before = diagnose("p", [PostgresSink(postgres_url, "t")])
    assert before.holds and holding(before) == ALWAYS
    assert "delivery is two_phase: max_prepared_transactions is" in says(before) and "are free" in says(before)
    with psycopg.connect(postgres_url) as connection:
        made = connection.execute("SELECT count(*) FROM pg_namespace WHERE nspname = 'onefold_sinks'").fetchone()
    assert made == (0,), "examining makes nothing"

    upserts = PostgresSink(postgres_url, "t", mode="upsert", key="id", order="n")
    staged = diagnose("p", [upserts])
    assert staged.holds and holding(staged) == ALWAYS | {"atomic-epoch"}
    assert "delivery is staged: upserts merge at once" in says(staged)

    world = make("u")
    world.start()
    record = world.epoch(0).record
    world.attempt(world.sinks[0], record, [1])
    ran = diagnose("p", list(world.sinks))
    assert "prepared transactions of this sink: 1," in says(ran) and "epoch 1 is complete" in says(ran)
    assert "synchronous_commit is on" in says(ran)


def test_replicas_whose_state_is_not_shown_to_us_are_not_said_to_lag(postgres_url: str) -> None:
    role = f"role_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN".encode())
        try:
            with psycopg.connect(postgres_url, autocommit=True, replication="true"):
                ours = diagnose("p", [PostgresSink(postgres_url, "t")])
                theirs = diagnose("p", [PostgresSink(make_conninfo(postgres_url, user=role), "t")])
        finally:
            connection.execute(f"DROP ROLE {role}".encode())
    assert "is synchronous" in says(ours, Level.CAUTION)
    assert "is not shown to us" in says(theirs, Level.CAUTION) and "synchronous:" not in says(theirs)


@pytest.mark.usefixtures("spark")
def test_a_postgres_sink_that_cannot_keep_its_promise_is_a_problem(
    postgres_url: str, tmp_path: Path, orders: MakeSource
) -> None:
    elsewhere = f"sqlite:///{tmp_path / 'store.db'}"
    CheckpointStore(elsewhere).id()
    apart = diagnose("p", [PostgresSink(postgres_url, "t", delivery="staged")], store=elsewhere)
    assert "the checkpoint store must be in its database" in says(apart, Level.PROBLEM)
    assert "delivery is staged" in says(apart), "what else can be looked at is"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE UNLOGGED TABLE t (id bigint)")
    answer = examined(orders("id long"), PostgresSink(postgres_url, "t", delivery="staged"))
    assert answer.exit_code == 1
    assert "PROBLEM" in answer.stdout and "SET LOGGED" in answer.stdout and "does NOT hold" in answer.stdout


def test_a_server_that_is_not_there_is_a_problem_and_the_others_are_examined(postgres_url: str) -> None:
    lost = KafkaSink("orders", bootstrap_servers="127.0.0.1:1", timeout_s=1)
    auto = PostgresSink("postgresql://127.0.0.1:1/shop", "t")
    found = diagnose("p", [lost, auto, PostgresSink(postgres_url, "t")])
    assert [sink.guarantee is None for sink in found.sinks] == [False, True, False]
    assert "127.0.0.1:1" in says(found, Level.PROBLEM) and "delivery is two_phase" in says(found, Level.FINE)
    assert not found.holds and found.invariants(found.sinks[1]) == {}


def test_a_source_is_held_against_the_position_of_the_pipeline(
    kafka_server: Any, kafka_topic: Topic, postgres_url: str, tmp_path: Path
) -> None:
    servers, topic = kafka_server.bootstrap_servers, kafka_topic(partitions=1, config={"retention.ms": "7200000"})
    producer = in_order(servers)
    hour_ago_ms = int(time.time() * 1000) - 5_400_000
    for number in range(10):
        producer.produce(topic, b"%d" % number, timestamp=hour_ago_ms)
    assert producer.flush(20) == 0
    store = CheckpointStore(url := f"sqlite:///{tmp_path / 'store.db'}")
    store.freeze(store.acquire("p", 0), Positions.of({f"{topic}/0": 4}))
    source, sink = KafkaSource(topic, bootstrap_servers=servers), PostgresSink(postgres_url, "t")

    waits = diagnose("p", [sink], store=url, sources=[source])
    assert waits.holds and "6 offsets are still to be read" in says(waits)
    assert f"topic {topic!r} keeps records for 2 hours" in says(waits)
    assert f"records in {topic}/0 wait to be read for more than half" in says(waits, Level.CAUTION)
    fresh = diagnose("other", [sink], store=url, sources=[source])
    assert "has not been started" in says(fresh)

    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    for future in admin.delete_records([TopicPartition(topic, 0, 7)]).values():
        future.result(20)
    gone = diagnose("p", [sink], store=url, sources=[source])
    assert f"3 offsets that were not read are deleted already, in {topic}/0" in says(gone, Level.PROBLEM)
    assert holding(gone) == ALWAYS - {"no-loss"}


@pytest.mark.usefixtures("spark")
def test_a_sql_sink_is_examined_with_its_options(tmp_path: Path, orders: MakeSource) -> None:
    def sink(order: str) -> SqlSink:
        url = f"sqlite:///{tmp_path / 'rows.db'}"
        return SqlSink(url, "t", mode="upsert", key="id", order=order, name="rows")

    fine = examined(orders("id long, n long"), sink("n"), "--json")
    assert fine.exit_code == 0, fine.output
    (found,) = json.loads(fine.stdout)["sinks"]
    assert (found["name"], found["mode"]) == ("rows", "staged") and not (tmp_path / "rows.db").exists()
    wrong = examined(orders("id long, n long"), sink("other"))
    assert wrong.exit_code == 1 and "[column-missing]" in wrong.stdout


@pytest.fixture
def complaints() -> Iterator[list[logging.LogRecord]]:
    """What PySpark says by itself of each error, on stderr."""
    logger, records = PySparkLogger.getLogger("SQLQueryContextLogger"), list[logging.LogRecord]()
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)


def test_a_transformation_that_names_a_column_that_there_is_not_is_a_problem_and_said_once(
    spark: SparkSession, postgres_url: str, orders: MakeSource, complaints: list[logging.LogRecord]
) -> None:
    for sql in ("SELECT id, gone FROM source", "SELEC id FROM source"):
        wrong = examined(orders("id long"), PostgresSink(postgres_url, "t"), "--json", change=in_spark(sql, "id long"))
        found = json.loads(wrong.stdout)
        assert wrong.exit_code == 1 and not found["holds"]
        assert [one["code"] for one in found["runtime"]] == [None, None, "transform-sql-invalid"]
        assert "SQLSTATE" in found["runtime"][2]["says"] and "\n" not in found["runtime"][2]["says"]
        assert any(one["level"] == "unchecked" for one in found["sinks"][0]["findings"]), "what rows there are"
    function = in_spark(lambda df: df.select("gone"), "gone long")
    failed = examined(orders("id long"), PostgresSink(postgres_url, "t"), change=function)
    assert failed.exit_code == 1 and "[transform-failed]" in failed.stdout, failed.output
    assert complaints == []
    with pytest.raises(AnalysisException):
        spark.sql("SELECT gone")
    assert len(complaints) == 1, "only what onefold says itself is not said twice"


@pytest.mark.usefixtures("spark")
def test_rows_of_the_transformation_that_do_not_fit_the_table_are_a_problem(
    postgres_url: str, orders: MakeSource
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id bigint, n int)")
    sink = PostgresSink(postgres_url, "t")
    for sql, schema, code in (
        ("SELECT id, cast(n AS int) AS n FROM source", "id long, n int", 0),
        ("SELECT id, n FROM source", "id long, n long", 1),
    ):
        answer = examined(orders("id long, n long"), sink, change=in_spark(sql, schema))
        assert answer.exit_code == code, answer.output
        assert ("[table-mismatch]" in answer.stdout) is bool(code)


@pytest.mark.usefixtures("spark")
def test_an_aggregations_rows_have_the_number_of_their_epoch_for_doctor_and_plan_too(
    postgres_url: str, orders: MakeSource
) -> None:
    sink = PostgresSink(postgres_url, "totals", mode="upsert", key="account", order="onefold_epoch")
    sql, schema = "SELECT account, sum(amount) AS amount FROM source GROUP BY account", "account long, amount long"
    source = orders("account long, amount long")
    update = named(piped("p", source=source, sinks=[sink], change=in_spark(sql, schema, output_mode="update")))
    answer = CliRunner().invoke(app, ["doctor", update])
    assert answer.exit_code == 0 and "the guarantee holds" in answer.stdout, answer.output
    made = CliRunner().invoke(app, ["plan", update])
    assert made.exit_code == 0 and '"onefold_epoch" bigint' in made.stdout, made.output
    append = examined(source, sink, change=in_spark(sql, schema))
    assert append.exit_code == 1 and "[epoch-without-update]" in append.stdout, append.output


@pytest.mark.usefixtures("spark")
def test_a_password_that_is_wrong_is_said_once(postgres_url: str, orders: MakeSource) -> None:
    wrong = postgres_url.replace("onefold@", "onefold:wrong@").partition("?")[0]
    dead = {"dead_letters": PostgresSink(wrong, "dead")}
    answer = examined(orders("id long", on_error="dead_letter"), PostgresSink(wrong, "t"), **dead)
    assert answer.exit_code == 1 and answer.stdout.count("password authentication failed") == 1, answer.output
    assert "  holds: " not in answer.stdout


@pytest.mark.usefixtures("spark")
def test_the_sink_of_dead_letters_is_examined_as_one_that_gets_dead_letters(
    postgres_url: str, orders: MakeSource
) -> None:
    def letters(table: str) -> Result:
        source = orders("id long", on_error="dead_letter")
        return examined(
            source, PostgresSink(postgres_url, "t"), "--json", dead_letters=PostgresSink(postgres_url, table)
        )

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE narrow (topic text)")
    fine, wrong = letters("made_by_the_start"), letters("narrow")
    assert fine.exit_code == 0, fine.output
    assert [sink["name"] for sink in json.loads(fine.stdout)["sinks"]] == ["t", "made_by_the_start"]
    codes = [[one["code"] for one in sink["findings"] if one["code"]] for sink in json.loads(wrong.stdout)["sinks"]]
    assert wrong.exit_code == 1 and codes == [[], ["table-mismatch"]]


@pytest.mark.usefixtures("spark")
def test_a_source_whose_brokers_are_down_is_one_finding(postgres_url: str) -> None:
    source = KafkaSource("t", bootstrap_servers="127.0.0.1:1", timeout_s=1, format="json", schema="id long")
    answer = examined(source, PostgresSink(postgres_url, "t"))
    assert answer.exit_code == 1 and answer.stdout.count("[kafka-unreachable]") == 1, answer.output
