"""`onefold verify --without-ledger`: tables that somebody else has written, against topics, files and other tables."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from confluent_kafka.cimpl import NewTopic
from harness.errors import raises
from harness.support import Rig
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.core import ConfigError

pytestmark = [pytest.mark.servers, pytest.mark.slow]

TOPIC = """
[[sources]]
kind = "kafka"
topics = ["{topic}"]
bootstrap_servers = "{servers}"
format = "json"
schema = "id long, n long"
"""
FILES = """
[[sources]]
kind = "files"
path = "{folder}"
format = "{format}"
schema = "id long, n long"
"""
TABLE = """
[[sources]]
kind = "postgres"
url = "{url}"
table = "rows"
schema = "id long, n long"
"""
POSTGRES = """
[[sinks]]
kind = "postgres"
url = "{url}"
table = "theirs"
"""
SQLITE = """
[[sinks]]
kind = "sql"
url = "sqlite:///{folder}/theirs.db"
table = "theirs"
"""
RENAMED = """
[[steps]]
filter = "id >= 10"
[[steps]]
select = {{ number = "id", n2 = "n + n" }}
"""


def verified(rig: Rig, text: str, *arguments: str, key: str = "id", **more: Any) -> tuple[int, dict[str, Any]]:
    file = rig.directory / "pair.toml"
    file.write_text('name = "pair"\n' + text.format(topic=rig.topic, servers=rig.servers, url=rig.url, **more))
    given = ["verify", str(file), "--without-ledger", f"--key={key}", "--json", *arguments]
    answer = CliRunner().invoke(app, given, catch_exceptions=False)
    assert not [*rig.directory.glob("**/pair.db")], "it has made a store"
    ((_, result),) = json.loads(answer.stdout)["sinks"].items()
    counts = result["comparison"]
    kinds = ("lost", "duplicated", "changed", "unexpected")
    return answer.exit_code, {kind: n for kind in kinds if (n := counts[kind])} | {"samples": counts["samples"]}


def test_a_table_that_a_connector_has_filled_from_a_topic(rig: Rig) -> None:
    rig.put(400)
    rig.sql("CREATE TABLE theirs (number bigint, n2 numeric, noted timestamptz DEFAULT now())")
    rig.sql("INSERT INTO theirs SELECT i, 2 * (i * i % 1009) FROM generate_series(10, 399) i")
    text = TOPIC + RENAMED + POSTGRES
    assert verified(rig, text, key="number") == (0, {"samples": {}})
    rig.sql("DELETE FROM theirs WHERE number = 17")
    rig.sql("INSERT INTO theirs VALUES (20, 800), (1000, 1)")
    rig.sql("UPDATE theirs SET n2 = n2 + 1 WHERE number = 33")
    code, found = verified(rig, text, key="number")
    samples = found.pop("samples")
    assert (code, found) == (1, {"lost": 1, "duplicated": 1, "changed": 1, "unexpected": 1})
    assert samples["lost"] == [f"number=17 (expected 1, found 0): from {rig.topic}/1 at offset 4"]
    assert samples["changed"][0].endswith(f": n2 is 161, and was to be 160; from {rig.topic}/1 at offset 8")
    plan = rig.directory / "plan.sql"
    given = ["verify", str(rig.directory / "pair.toml"), "--without-ledger", "--key=number", f"--plan={plan}"]
    assert CliRunner().invoke(app, given, catch_exceptions=False).exit_code == 1
    assert "DELETE FROM" in plan.read_text()
    compact = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    of_topic = ConfigResource(ResourceType.TOPIC, rig.topic, incremental_configs=[compact])
    admin = AdminClient({"bootstrap.servers": rig.servers})
    for done in admin.incremental_alter_configs([of_topic]).values():
        done.result(30)
    assert "compacted" in CliRunner().invoke(app, given, catch_exceptions=False).output
    assert "compacted" in plan.read_text() and "DELETE FROM" not in plan.read_text(), "some may be right"


def test_up_to_given_offsets(rig: Rig) -> None:
    rig.put(400)
    rig.sql("CREATE TABLE theirs (id bigint, n bigint)")
    rig.sql("INSERT INTO theirs SELECT i, i * i % 1009 FROM generate_series(0, 199) i")
    ends = [f"--until={rig.topic}/{number}=50" for number in range(4)]
    assert verified(rig, TOPIC + POSTGRES, *ends) == (0, {"samples": {}})
    code, found = verified(rig, TOPIC + POSTGRES, *ends[1:])
    assert (code, found["lost"]) == (1, 50)
    for wrong in ("nowhere/0=5", f"{rig.topic}/9=5", f"{rig.topic}/0=101"):
        with raises(ConfigError, "option-value", wrong.partition("=")[0], rig.topic):
            verified(rig, TOPIC + POSTGRES, f"--until={wrong}")
    with raises(ConfigError, "option-value", "orders/0=1200"):
        verified(rig, TOPIC + POSTGRES, "--until=5")
    admin = AdminClient({"bootstrap.servers": rig.servers})
    for done in admin.delete_records([TopicPartition(rig.topic, 0, 10)]).values():
        done.result(30)
    code, found = verified(rig, TOPIC + POSTGRES, *ends)
    assert (code, found["unexpected"]) == (1, 10)
    plan = rig.directory / "plan.sql"
    given = ["verify", str(rig.directory / "pair.toml"), "--without-ledger", "--key=id", *ends, f"--plan={plan}"]
    said = CliRunner().invoke(app, given, catch_exceptions=False).output
    assert f"expected begins at {rig.topic}/0=10:" in " ".join(said.split())
    assert "10 keys are wrong" in plan.read_text() and "DELETE FROM" not in plan.read_text(), "these rows are right"
    with raises(ConfigError, "option-value", "from 10 to 100"):
        verified(rig, TOPIC + POSTGRES, f"--until={rig.topic}/0=9")


def test_a_topic_that_somebody_has_copied(rig: Rig) -> None:
    rig.put(40)
    theirs = f"{rig.topic}-copy"
    admin = AdminClient({"bootstrap.servers": rig.servers})
    admin.create_topics([NewTopic(theirs, num_partitions=1)])[theirs].result(30)
    copied = [b'{"id":%d,"n":%d}' % sent for sent in rig.sent]
    rig.put_values(copied[:-1], partitions=1, topic=theirs)
    copy = f'[[sinks]]\nkind = "kafka"\ntopic = "{theirs}"\nbootstrap_servers = "{rig.servers}"\nformat = "json"\n'
    code, found = verified(rig, TOPIC + copy)
    assert (code, found["lost"], len(found)) == (1, 1, 2)
    rig.put_values(copied[-1:], partitions=1, topic=theirs)
    assert verified(rig, TOPIC + copy) == (0, {"samples": {}})


@pytest.mark.parametrize("format_", ["json", "csv"])
def test_a_database_against_files_and_a_query_over_them(rig: Rig, tmp_path: Path, format_: str) -> None:
    numbers = [(i, i * i % 1009) for i in range(300)]
    row = '{{"id": {}, "n": {}}}\n' if format_ == "json" else "{},{}\n"
    (tmp_path / "in").mkdir()
    for part in range(3):
        lines = [row.format(*each) for each in numbers[part::3]]
        (tmp_path / f"in/{part}.{format_}").write_text("".join(lines))
    with sqlite3.connect(tmp_path / "theirs.db") as database:
        database.execute("CREATE TABLE theirs (id BIGINT, n BIGINT)")
        database.executemany("INSERT INTO theirs VALUES (?, ?)", numbers)
    more = "csv_header = false\n" if format_ == "csv" else ""
    text = FILES.replace("{folder}", str(tmp_path / "in")) + more + SQLITE
    given: dict[str, Any] = {"folder": tmp_path, "format": format_}
    assert verified(rig, text, **given) == (0, {"samples": {}})
    with sqlite3.connect(tmp_path / "theirs.db") as database:
        database.execute("UPDATE theirs SET n = 0 WHERE id = 7")
    code, found = verified(rig, text, **given)
    assert (code, found) == (1, {"changed": 1, "samples": {"changed": [found["samples"]["changed"][0]]}})
    assert "n is 0, and was to be 49" in found["samples"]["changed"][0]
    query = "SELECT id, if(id = 7, 0, n) AS n FROM source"
    assert verified(rig, text, "--expect", query, **given) == (0, {"samples": {}})


def test_a_database_against_a_table(rig: Rig, tmp_path: Path) -> None:
    rig.sql("CREATE TABLE rows (id bigint, n bigint)") if not rig.sql("SELECT to_regclass('rows')")[0][0] else None
    rig.sql("INSERT INTO rows SELECT i, i FROM generate_series(1, 500) i")
    with sqlite3.connect(tmp_path / "theirs.db") as database:
        database.execute("CREATE TABLE theirs (id BIGINT, n BIGINT)")
        database.executemany("INSERT INTO theirs VALUES (?, ?)", [(i, i) for i in range(1, 500)])
    code, found = verified(rig, TABLE + SQLITE, folder=tmp_path)
    assert (code, found) == (1, {"lost": 1, "samples": {"lost": ["id=500 (expected 1, found 0)"]}})


CSV = """
[[sources]]
kind = "files"
path = "{folder}"
format = "csv"
csv_header = true
schema = "id long, n long"
"""


def against(rig: Rig, truth: str, copy: str, folder: Path) -> tuple[int, dict[str, Any]]:
    """As `verified`; neither sink is asked, for none is there."""
    text = copy.format(topic=rig.topic, servers=rig.servers, url=rig.url, folder=folder) + NO_SINK
    (rig.directory / "copy.toml").write_text('name = "copy"\n' + text)
    return verified(rig, truth + NO_SINK, f"--against={rig.directory / 'copy.toml'}", folder=folder)


NO_SINK = """
[[sinks]]
kind = "postgres"
url = "postgresql://nobody@127.0.0.1:1/nowhere"
table = "nowhere"
"""
FAULTS = (1, {"lost": 1, "duplicated": 1, "changed": 1})


def faulty(rows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Without id 17, with 20 twice, and another n of 33."""
    changed = [(id_, n + 1 if id_ == 33 else n) for id_, n in rows if id_ != 17]
    return [*changed, rows[20]]


def test_a_topic_against_parquet_files(rig: Rig, tmp_path: Path) -> None:
    rig.put(400)
    (tmp_path / "in").mkdir()

    def write(rows: list[tuple[int, int]]) -> None:
        for part in range(3):
            ids, ns = zip(*rows[part::3], strict=True)
            kinds = {"number": pa.array(ids, pa.int64()), "n": pa.array(ns, pa.int64()), "note": ["x"] * len(ids)}
            pq.write_table(pa.table(kinds), tmp_path / f"in/{part}.parquet")

    copy = '[[sources]]\nkind = "files"\npath = "{folder}/in"\nformat = "parquet"\n'
    copy += '[[steps]]\nselect = {{ id = "number", n = "n" }}\n'
    write(rig.sent)
    assert against(rig, TOPIC, copy, tmp_path) == (0, {"samples": {}})
    write(faulty(rig.sent))
    code, found = against(rig, TOPIC, copy, tmp_path)
    samples = found.pop("samples")
    assert (code, found) == FAULTS
    assert samples == {
        "lost": [f"id=17 (expected 1, found 0): from {rig.topic}/1 at offset 4"],
        "duplicated": [f"id=20 (expected 1, found 2): from {rig.topic}/0 at offset 5"],
        "changed": [f"id=33 (expected 1, found 1): n is 81, and was to be 80; from {rig.topic}/1 at offset 8"],
    }
    with raises(ConfigError, "verify-columns-missing", "id bigint", "number bigint, n bigint"):
        against(rig, TOPIC, copy.partition("[[steps]]")[0], tmp_path)


def test_a_table_against_csv_files(rig: Rig, tmp_path: Path) -> None:
    rows = [(i, i * i % 1009) for i in range(300)]
    rig.sql("CREATE TABLE rows (id bigint, n bigint)")
    rig.sql("INSERT INTO rows SELECT i, i * i % 1009 FROM generate_series(0, 299) i")
    (tmp_path / "in").mkdir()

    def write(given: list[tuple[int, int]]) -> None:
        for part in range(3):
            lines = ["id,n\n", *(f"{id_},{n}\n" for id_, n in given[part::3])]
            (tmp_path / f"in/{part}.csv").write_text("".join(lines))

    copy = CSV.replace("{folder}", "{folder}/in")
    write(rows)
    assert against(rig, TABLE, copy, tmp_path) == (0, {"samples": {}})
    write(faulty(rows))
    code, found = against(rig, TABLE, copy, tmp_path)
    samples = found.pop("samples")
    assert (code, found) == FAULTS
    assert samples == {
        "lost": ["id=17 (expected 1, found 0)"],
        "duplicated": ["id=20 (expected 1, found 2)"],
        "changed": ["id=33 (expected 1, found 1): n is 81, and was to be 80"],
    }
    code, found = against(rig, copy, TABLE, tmp_path)
    assert (code, found["lost"], found["unexpected"], found["changed"]) == (1, 1, 1, 1), "the other way round"
