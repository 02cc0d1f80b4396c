"""Secrets that users give: who else on the machine, or in a log, gets to read them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from onefold.core import OnefoldError
from onefold.core.store import CheckpointStore
from onefold.local import KafkaServer
from onefold.sinks import KafkaSink, PostgresSink, SqlSink
from onefold.sinks.kafka.security import Security
from onefold.sinks.postgres.operations import Operations
from onefold.sources import KafkaSource, PostgresSource
from onefold.sources.kafka.registry import registry
from onefold.sources.postgres.planning import Part, describe
from onefold.spark import Pipeline

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
    kafka = KafkaSink("k", bootstrap_servers="b:1", settings=LOGIN)
    registered = {"url": f"http://u:{SECRET}@h", "basic.auth.user.info": f"u:{SECRET}"}
    avro = KafkaSource("t", bootstrap_servers="b:1", settings=LOGIN, format="avro", schema_registry=registered)
    source = PostgresSource(POSTGRES, "t")
    pipeline = Pipeline("p", [postgres, kafka], POSTGRES)
    store = CheckpointStore(MARIADB)
    shown = [
        *(postgres, postgres.settings, sql, sql._settings, kafka, kafka.settings, avro, avro.broker(), source),
        *(pipeline, store, store.database, store.database.url, store.database.engine, Operations(POSTGRES)),
        *(Security.of(LOGIN), Part(POSTGRES, {}, None, (), "SELECT 1", "l"), pipeline.guarantees),
    ]
    for one in shown:
        assert SECRET not in f"{one!r} {one}", type(one)


REFUSED: list[Callable[[], object]] = [
    lambda: KafkaSource("t", bootstrap_servers="b:1", settings={"sasl.password": SECRET.encode()}),  # type: ignore[dict-item]
    lambda: KafkaSink("t", bootstrap_servers="b:1", settings={"sasl.password": [SECRET]}),  # type: ignore[dict-item]
    lambda: KafkaSink("t", bootstrap_servers="b:1", settings={**LOGIN, "sasl.mechanism": "x"}),
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
