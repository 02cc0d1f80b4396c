"""Files that define pipelines: what is read from them, and that whatever is wrong is named with its place."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from harness.errors import raises
from pyspark import cloudpickle

from onefold.core import ConfigError
from onefold.pipeline import Definition, SparkSettings, Transform, Trigger, read
from onefold.pipeline.references import imported
from onefold.sinks import HBaseSink, KafkaSink, PostgresSink, SqlSink
from onefold.sources import IdsWithin, KafkaSource, OrderedIds

ORDERS = """\
name = "orders"

[source]
kind = "kafka"
topics = "orders"
bootstrap_servers = "localhost:9092"
format = "json"
schema = "id long, amount decimal(12,2)"

[[sinks]]
kind = "postgres"
url = "postgresql://shop@localhost/shop"
table = "orders"
"""
FUNCTIONS = """\
def double(batch):
    yield from _all(batch)

def _all(batch):
    return [batch, batch]

def newest(base, new):
    return new

class Of:
    newest = staticmethod(newest)

number = 3
"""
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes the file with one text replaced by another, which may follow it."""

    def written(old: str = "", new: str = "") -> str:
        assert old in ORDERS
        (tmp_path / "orders.toml").write_text(ORDERS.replace(old, new, 1) if old else ORDERS + new)
        return str(tmp_path / "orders.toml")

    return written


def test_a_file_has_what_a_definition_in_python_has(write: Write, tmp_path: Path) -> None:
    source = KafkaSource(
        "orders", bootstrap_servers="localhost:9092", format="json", schema="id long, amount decimal(12,2)"
    )
    found = read(write())
    assert (found.name, found.source, found.transform) == ("orders", source, None)
    (sink,) = found.sinks
    assert isinstance(sink, PostgresSink)
    assert (sink.table, sink.url) == ("orders", "postgresql://shop@localhost/shop")
    assert (found.trigger, found.spark, found.output_mode) == (Trigger(), SparkSettings(), "append")
    assert found.checkpoint == str(tmp_path / ".onefold/orders.checkpoint")
    assert found.store_url == sink.store_url(), "the sink's own database"
    assert found.is_direct


def test_every_kind_of_sink_and_all_else_that_there_is(write: Write) -> None:
    found = read(
        write(
            "[[sinks]]",
            """\
deduplicate = { span = "2 hours", id = "header:id" }
on_error = "dead_letter"
[source.client_config]
"fetch.min.bytes" = 1
"socket.keepalive.enable" = true

[transform]
sql = "SELECT * FROM source"

[trigger]
processing_time = "10 seconds"

[spark]
master = "local[2]"
settings = { "spark.sql.shuffle.partitions" = 8 }

[dead_letters]
kind = "sql"
url = "sqlite:////tmp/letters.db"
table = "letters"

[[sinks]]
kind = "sql"
url = "sqlite:////tmp/shop.db"
table = "in_sqlite"

[[sinks]]
kind = "kafka"
topic = "out"
bootstrap_servers = "localhost:9092"
key = ["id"]

[[sinks]]
kind = "hbase"
table = "cells"
row_key = "id"
family = "f"
servers = { servers = "localhost:9090", transport = "framed" }

[[sinks]]""",
        )
    )
    sql, kafka, hbase, postgres = found.sinks
    assert isinstance(sql, SqlSink)
    assert isinstance(kafka, KafkaSink)
    assert isinstance(hbase, HBaseSink)
    assert isinstance(postgres, PostgresSink)
    assert (kafka.settings.key, hbase.settings.hbase.transport) == (("id",), "framed")
    assert found.source.client_config == {"fetch.min.bytes": "1", "socket.keepalive.enable": "true"}
    assert found.source.deduplicate == IdsWithin("2 hours", "header:id")
    assert found.transform == Transform(sql="SELECT * FROM source")
    assert found.trigger.of_spark() == {"processingTime": "10 seconds"}
    assert (found.spark.master, found.spark.settings) == ("local[2]", {"spark.sql.shuffle.partitions": "8"})
    assert isinstance(found.dead_letters, SqlSink)
    assert [sink.name for sink in found.everyone][-1] == "letters"
    assert not found.is_direct


def test_one_of_several_tables_is_the_one_that_fits(write: Write) -> None:
    assert read(write("[[sinks]]", "deduplicate = {}\n[[sinks]]")).source.deduplicate == OrderedIds()


def test_paths_begin_in_the_folder_of_a_link_and_not_in_that_of_its_target(write: Write, tmp_path: Path) -> None:
    target, link = Path(write()), tmp_path / "etc" / "orders.toml"
    link.parent.mkdir()
    link.symlink_to(target)
    assert read(str(link)).checkpoint == str(tmp_path / "etc/.onefold/orders.checkpoint")
    through = tmp_path / "current"
    through.symlink_to(link.parent)
    assert read(str(through / "orders.toml")).checkpoint == str(through / ".onefold/orders.checkpoint")


def test_functions_come_from_files_beside_it_whatever_the_working_directory_is(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    monkeypatch.chdir("/")
    found = read(write("[[sinks]]", '[transform]\narrow = "functions.py:double"\n[[sinks]]')).transform
    assert found is not None
    assert found.arrow is not None
    batch = pa.RecordBatch.from_pydict({"n": [1]})
    assert list(found.arrow(batch)) == [batch, batch]
    hbase = 'kind = "hbase"\nservers = "h:1"\nrow_key = "id"\nfamily = "f"\nmode = "rolling"\n'
    hbase += 'merge = "functions.py:Of.newest"'
    (sink,) = read(write('kind = "postgres"\nurl = "postgresql://shop@localhost/shop"', hbase)).sinks
    assert isinstance(sink, HBaseSink)


def test_what_a_file_needs_travels_to_workers_that_do_not_have_it(tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    function = imported("functions.py:double", tmp_path)
    (tmp_path / "pickled").write_bytes(cloudpickle.dumps(function))  # type: ignore[no-untyped-call]
    (tmp_path / "functions.py").unlink()
    code = "import pickle, sys; print(list(pickle.load(open(sys.argv[1], 'rb'))(7)))"
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "pickled"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[7, 7]\n"


def test_a_definition_in_python_is_as_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs.py").write_text(
        "from onefold.pipeline import Definition\nfrom onefold.sinks import SqlSink\nfrom onefold.sources import"
        ' KafkaSource\npipeline = Definition("p", source=KafkaSource("t", bootstrap_servers="b:1"),'
        ' sinks=[SqlSink("sqlite:////tmp/x.db", "t")])\nwrong = 3\n'
    )
    assert isinstance(read(f"{tmp_path}/jobs.py:pipeline"), Definition)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert read("jobs.py:pipeline") is read("jobs.py:pipeline"), "a file is loaded once"
    assert read("jobs:pipeline").name == "p"
    for named, code in (
        ("jobs.py:wrong", "option-value"),
        ("jobs.py:pipelin", "reference-missing"),
        ("nowhere.py:pipeline", "file-unreadable"),
        ("nowhere:pipeline", "reference-missing"),
        (
            "pipeline",
            "reference-invalid",
        ),
        ("orders.TOML", "reference-invalid"),
        ("orders.toml:pipeline", "reference-invalid"),
    ):
        with raises(ConfigError, code):
            read(named)


SINK = 'table = "orders"\n'
WRONG = {
    "a key that there is not": ("topics", "topcs", r"source has no key 'topcs'; did you mean 'topics'\? "),
    "a key of a sink": ("table", "tabel", r"sinks\[0\] has no key 'tabel'; did you mean 'table'\?"),
    "a key of the file": ("name", "nam", r"the file has no key 'nam'; did you mean 'name'\?"),
    "a number for a text": ('name = "orders"', "name = 3", "name: a text is wanted, in quotes"),
    "a text for a number": (SINK, f'{SINK}lock_timeout_s = "long"', r"sinks\[0\].lock_timeout_s: a number is wanted"),
    "a text for a whole number": (
        "[[sinks]]",
        'max_offsets_per_trigger = "5"\n[[sinks]]',
        "source.max_offsets_per_trigger: a whole number is wanted",
    ),
    "a truth for a whole number": (
        "[[sinks]]",
        "max_offsets_per_trigger = true\n[[sinks]]",
        "source.max_offsets_per_trigger: a whole number is wanted",
    ),
    "a text for a truth": ("[source]", 'require_tls = "yes"\n[source]', "require_tls: true or false is wanted"),
    "an empty store": ("[source]", 'store = ""\n[source]', "store is empty: name a URL, or leave it out"),
    "a store that is no URL": ("[source]", 'store = "hunter2"\n[source]', "store: URL cannot be read"),
    "a store in the working directory": (
        "[source]",
        'store = "sqlite:///x.db"\n[source]',
        "store names the SQLite file x.db, which would begin in the working directory",
    ),
    "a sink in the working directory": (
        'kind = "postgres"\nurl = "postgresql://shop@localhost/shop"',
        'kind = "sql"\nurl = "sqlite:///x.db"',
        r"sinks\[0\].url names the SQLite file x.db, which would begin in the working directory",
    ),
    "no sink for dead letters": ("[[sinks]]", 'on_error = "dead_letter"\n[[sinks]]', "no sink for them"),
    "dead letters that nothing makes": (
        "[[sinks]]",
        '[dead_letters]\nkind = "postgres"\nurl = "postgresql://h/d"\ntable = "l"\n[[sinks]]',
        "which makes none",
    ),
    "aggregations without a transformation": (
        "[source]",
        'output_mode = "update"\n[source]',
        "output_mode='update' is for aggregations, and this pipeline has none",
    ),
    "a character that no terminal shows": ('name = "orders"', 'name = "a\\u001b"', "slash or control character"),
    "a table for a list": ("[[sinks]]", "[sinks]", r"sinks: a list is wanted: \[\[sinks\]\] begins one"),
    "a word that is none": (SINK, f'{SINK}delivery = "x"', r"sinks\[0\].delivery: .*'two_phase' or 'staged'"),
    "a number in a list": ('topics = "orders"', 'topics = ["a", 3]', r"source\.topics\[1\]: a text is wanted"),
    "another type in one of several tables": (
        "[[sinks]]",
        "deduplicate = { span = 3 }\n[[sinks]]",
        "source.deduplicate.span: a text is wanted",
    ),
    "a key of a table that a text may be, too": (
        'kind = "postgres"\nurl = "postgresql://shop@localhost/shop"',
        'kind = "hbase"\nrow_key = "id"\nfamily = "f"\nservers = { srvrs = "h:1" }',
        r"sinks\[0\].servers has no key 'srvrs'; did you mean 'servers'",
    ),
    "an empty source": (
        ORDERS[ORDERS.index("kind =") : ORDERS.index("[[sinks]]")],
        "",
        "source: kind is missing: kafka",
    ),
    "an empty sink": (ORDERS[ORDERS.index('kind = "postgres') :], "", r"sinks\[0\]: kind is missing: postgres, sql"),
    "lists in lists": ("[source]", f"x = {'[' * 2000}{']' * 2000}\n[source]", "nested too deeply"),
    "no kind": ('kind = "kafka"\n', "", "source: kind is missing: kafka"),
    "a kind that there is not": ('"postgres"', '"postgre"', r"there is no kind 'postgre'; did you mean 'postgres'\?"),
    "something is missing": (SINK, "", r"sinks\[0\].table is missing"),
    "no sink": (ORDERS[ORDERS.index("[[sinks]]") :], "", "sinks is missing"),
    "what the constructor refuses": (SINK, f'{SINK}mode = "upsert"', r"sinks\[0\]: "),
    "two sinks of one name": ("[[sinks]]", ORDERS[ORDERS.index("[[sinks]]") :] + "[[sinks]]", "each with its own name"),
    "no TOML": ("[source]", "[source", r"this is not TOML: .*line 3"),
    "a variable that is not set": (
        "shop@",
        "${HUNTER_NOT_SET}@",
        r"HUNTER_NOT_SET\} names an environment variable that",
    ),
    "a reference that is none": ("shop@", "${a b}@", "names no environment variable"),
    "no password file": (SINK, f'{SINK}password_file = "x"', "x cannot be read: No such file"),
    "two passwords": ("shop@", "shop:hunter2@", "this one has a password already"),
    "whose password": ("shop@", "", "this one names no user"),
    "a password with an odd character": ("shop@", "shop:a@b:hunter2@", "with odd characters percent-encoded"),
    "two transformations": (
        "[[sinks]]",
        '[transform]\nsql = "SELECT 1"\narrow = "os:walk"\n[[sinks]]',
        "given: sql and arrow",
    ),
    "no function": (
        "[[sinks]]",
        '[transform]\narrow = "os:wlak"\n[[sinks]]',
        r"transform.arrow: os has no 'wlak'; did",
    ),
    "no function's name": ("[[sinks]]", '[transform]\narrow = "walk"\n[[sinks]]', "transform: arrow is a function"),
    "another key of a table": ("[[sinks]]", "[trigger]\nevery = 3\n[[sinks]]", "trigger has no key 'every'"),
    "a time that is none": (
        "[[sinks]]",
        '[trigger]\nprocessing_time = "10"\n[[sinks]]',
        "trigger: processing_time is a time",
    ),
    "a nested key": ("[[sinks]]", 'deduplicate = { span = "1 day", ide = "k" }\n[[sinks]]', "did you mean 'id'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_whatever_is_wrong_is_one_error_with_file_and_key_and_without_any_secret(
    case: str, write: Write, tmp_path: Path
) -> None:
    old, new, says = WRONG[case]
    path = write(old, new)
    if case in ("two passwords", "whose password"):
        (tmp_path / "pw").write_text("hunter2")
        path = str(tmp_path / "orders.toml")
        text = Path(path).read_text()
        Path(path).write_text(text.replace(SINK, f'{SINK}password_file = "pw"\n'))
    with pytest.raises(ConfigError, match=says) as raised:
        read(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert "hunter2" not in "".join(traceback.format_exception(raised.value))
    assert "\n" not in str(raised.value)


def test_a_module_that_lies_beside_a_definition_is_said_to_be_found_by_pythonpath(tmp_path: Path) -> None:
    (tmp_path / "shop.py").touch()
    (tmp_path / "jobs.py").write_text("import shop.tables\n")
    (tmp_path / "others.py").write_text("import nothing_of_this_name\n")
    with raises(ConfigError, "reference-broken", f"{tmp_path}"):
        read(f"{tmp_path}/jobs.py:pipeline")
    with raises(ConfigError, "reference-broken", "'nothing_of_this_name'"):
        read(f"{tmp_path}/others.py:pipeline")


def test_a_file_that_cannot_be_read_is_such_an_error_too(tmp_path: Path) -> None:
    with raises(ConfigError, "file-unreadable"):
        read(str(tmp_path / "nowhere.toml"))
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with raises(ConfigError, "file-invalid"):
        read(str(tmp_path / "bytes.toml"))


def test_a_file_may_begin_with_a_byte_order_mark(write: Write) -> None:
    path = Path(write())
    marked = path.with_name("marked.toml")
    marked.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read(str(marked)).name == read(str(path)).name


def test_secrets_come_from_variables_and_files(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "password").write_text("hunter/2@ü\n")
    monkeypatch.setenv("HOST_OF_SHOP", "db")
    found = read(write('shop@localhost/shop"\n', 'shop@${HOST_OF_SHOP}/$${shop}"\npassword_file = "password"\n'))
    (sink,) = found.sinks
    assert isinstance(sink, PostgresSink)
    assert sink.url == "postgresql://shop:hunter%2F2%40%C3%BC@db/${shop}"
    assert "hunter" not in repr(found)
    found = read(write("[[sinks]]", '[source.client_config]\n"sasl.password" = "${file:password}"\n[[sinks]]'))
    assert found.source.client_config == {"sasl.password": "hunter/2@ü"}
    assert "hunter" not in repr(found)
