"""Secrets that users give: who else on the machine, or in a log, gets to read them."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest
import sqlalchemy as sa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from harness.definitions import piped
from harness.schema_registry import SchemaRegistry

from onefold.clients.kafka.broker_connection import Security
from onefold.core import OnefoldError
from onefold.local import KafkaServer
from onefold.sinks import KafkaSink, PostgresSink, SqlSink
from onefold.sinks.postgres.admin import Operations
from onefold.sources import KafkaSource, PostgresSource
from onefold.sources.kafka.formats.avro.schema_registry import registry
from onefold.sources.postgres.planning import TablePart, describe
from onefold.store.checkpoint_store import CheckpointStore

SECRET = "PLANTED-hunter2"


@contextmanager
def command_lines() -> Iterator[Callable[[], list[str]]]:
    """What other users of the machine see of this process's children in the meantime, and of itself."""
    seen: set[str] = set()
    is_over = threading.Event()

    def look() -> None:
        ours = psutil.Process()
        while not is_over.wait(0.02):
            for process in [ours, *ours.children(recursive=True)]:
                try:
                    seen.add("\0".join(process.cmdline()))
                except psutil.Error:
                    continue  # it has ended

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield lambda: sorted(seen)
    finally:
        is_over.set()
        looking.join()


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.attack(
    who="a user of the machine", does="lists processes while a local Kafka is made", gets="no user's password"
)
def test_the_process_that_makes_kafkas_users_does_not_show_their_passwords(tmp_path: Path) -> None:
    with command_lines() as seen, KafkaServer(tmp_path, users={"alice": SECRET}) as server:
        assert any("kafka.tools.StorageTool" in line for line in seen())
        assert not [line for line in seen() if SECRET in line]
        left = [path for path in server.home.rglob("*") if path.is_file() and SECRET in path.read_text(errors="ignore")]
        assert left == []


LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "u",
    "sasl.password": SECRET,
    "ssl.key.password": SECRET,
}
POSTGRES = f"postgresql://u:{SECRET}@127.0.0.1:1/d?sslpassword={SECRET}"
MARIADB = f"mariadb://u:{SECRET}@127.0.0.1:1/d"


def test_no_object_shows_a_secret_that_it_was_given() -> None:
    postgres, sql = PostgresSink(POSTGRES, "t"), SqlSink(MARIADB, "t")
    kafka = KafkaSink("k", bootstrap_servers="b:1", client_config=LOGIN)
    registered = {"url": f"http://u:{SECRET}@h", "basic.auth.user.info": f"u:{SECRET}"}
    avro = KafkaSource("t", bootstrap_servers="b:1", client_config=LOGIN, format="avro", schema_registry=registered)
    source = PostgresSource(POSTGRES, "t")
    letters = PostgresSink(POSTGRES, "letters")
    reads = KafkaSource("r", bootstrap_servers="b:1", client_config=LOGIN, format="raw", on_error="dead_letter")
    pipeline = piped("p", source=reads, sinks=[postgres, kafka], dead_letters=letters, store=POSTGRES)
    writer = pipeline.writer()
    store = CheckpointStore(MARIADB)
    shown = [
        *(postgres, postgres.settings, sql, sql._settings, kafka, kafka.settings, avro, avro.broker(), source),
        *(pipeline, pipeline.flow, pipeline.graph, pipeline.flow.explain(), writer, writer.guarantees),
        *(store, store.database, store.database.url, store.database.backend, Operations(POSTGRES)),
        *(Security.of(LOGIN), TablePart(POSTGRES, "pg_catalog", {}, None, (), "SELECT 1", "l"), pipeline.guarantees),
    ]
    for one in shown:
        assert SECRET not in f"{one!r} {one}", type(one)


REFUSED: list[Callable[[], object]] = [
    lambda: KafkaSource("t", bootstrap_servers="b:1", client_config={"sasl.password": SECRET.encode()}),  # type: ignore[dict-item]
    lambda: KafkaSink("t", bootstrap_servers="b:1", client_config={"sasl.password": [SECRET]}),  # type: ignore[dict-item]
    lambda: KafkaSink("t", bootstrap_servers="b:1", client_config={**LOGIN, "sasl.mechanism": "x"}),
    lambda: PostgresSink(f"postgresql://u:{SECRET}@[h/d", "t"),
    lambda: describe(PostgresSource(f"postgresql://u:{SECRET}@[h/d", "t")),
    lambda: SqlSink(f"mariadb://u:{SECRET}@h:x/d", "t"),
    lambda: CheckpointStore(f"mariadb://u:{SECRET}@h:x/d"),
    lambda: registry({"url": f"http://u:{SECRET}/1@127.0.0.1:1"}, 1).latest("s"),
]


@pytest.mark.parametrize("make", REFUSED)
def test_no_refusal_of_settings_quotes_a_secret(make: Callable[[], object]) -> None:
    with pytest.raises(OnefoldError) as raised:
        make()
    assert SECRET not in f"{raised.value} {raised.value.__cause__!r}"


AVRO = json.dumps({"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]})
JOB = Path(__file__).parents[1] / "harness" / "secrets_job.py"


@pytest.mark.servers
@pytest.mark.soak
@pytest.mark.attack(
    who="who sees logs, errors, processes, Spark's pages, its event log, checkpoints or dead letters",
    does="looks for the secrets that a job was given",
    gets="none",
)
def test_a_running_job_shows_its_secrets_nowhere(tmp_path: Path, postgres_url: str, servers_directory: Path) -> None:
    words = {name: f"PLANTED-{name}-{uuid.uuid4().hex[:6]}" for name in ("kafka", "wrong", "url", "registry", "key")}
    with (
        KafkaServer(servers_directory / "secrets", users={"alice": words["kafka"]}) as kafka,
        SchemaRegistry() as registry,
    ):
        topics = [f"from-{uuid.uuid4().hex[:6]}", f"into-{uuid.uuid4().hex[:6]}"]
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        for future in admin.create_topics([NewTopic(name, 2, 1) for name in topics]).values():
            future.result(30)
        number = registry.register("s", {"schema": AVRO})
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for value in (struct.pack(">bI", 0, number) + bytes([2 * i]) for i in range(5)):
            producer.produce(topics[0], value)
        producer.produce(topics[0], b"no Avro")
        assert producer.flush(30) == 0
        role = f"planted_{uuid.uuid4().hex[:6]}"
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{words['url']}'".encode())
        its = sa.make_url(postgres_url).difference_update_query(["passfile"])
        url = its.set(username=role, password=words["url"]).render_as_string(hide_password=False)
        login = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "alice",
            "sasl.password": words["kafka"],
            "ssl.key.password": words["key"],
        }
        given = {
            "kafka": kafka.secure_servers,
            "settings": login,
            "topic": topics[0],
            "into": topics[1],
            "avro": AVRO,
            "url": url,
            "dead": sa.make_url(url).set(port=1).render_as_string(hide_password=False),
            "wrong": words["wrong"],
            "registry": {"url": registry.url, "basic.auth.user.info": f"u:{words['registry']}"},
            "directory": str(tmp_path / "job"),
        }
        (tmp_path / "given.json").write_text(json.dumps(given))
        (tmp_path / "job").mkdir()
        with command_lines() as seen:
            ended = subprocess.run(
                [sys.executable, str(JOB), str(tmp_path / "given.json")],
                capture_output=True,
                text=True,
                timeout=400,
                check=False,
            )
            lines = seen()
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert any("pyspark" in line for line in lines)
    with psycopg.connect(postgres_url) as connection:
        letters = connection.execute("SELECT * FROM letters").fetchall()
        assert len(letters) == 2
        stores = connection.execute("SELECT * FROM onefold_sinks.onefold_epochs").fetchall()
    places = {"processes": "\n".join(lines), "letters": f"{letters}", "store": f"{stores}", "its log": ended.stderr}
    places |= {"its words": ended.stdout}
    files = [path for path in (tmp_path / "job").rglob("*") if path.is_file()]
    assert any("events" in path.parts for path in files) and any("checkpoint-spark" in path.parts for path in files)
    places |= {str(path.relative_to(tmp_path)): path.read_bytes().decode("latin-1") for path in files}
    shown = [(name, place) for name, word in words.items() for place, text in places.items() if word in text]
    assert shown == []
