"""Files of pipelines: what is read from them, and that whatever is wrong is named with its place."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness.errors import raises
from pyspark import cloudpickle

from onefold.core import ConfigError
from onefold.flow.graph.operators import Deduplicating, MappingBatches
from onefold.pipeline import Engine, Pipeline, Spark, read
from onefold.pipeline.references import have_files_travel, imported
from onefold.sinks import HBaseSink, KafkaSink, PostgresSink, SqlSink
from onefold.sources import IdsWithin, KafkaSource, OrderedIds
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.pins import pin

ORDERS = """\
name = "orders"

[[sources]]
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
def texts(row):
    yield {"id": row["id"], "text": str(row["cents"])}

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


def test_a_file_has_what_a_pipeline_in_python_has(write: Write, tmp_path: Path) -> None:
    source = KafkaSource(
        "orders", bootstrap_servers="localhost:9092", format="json", schema="id long, amount decimal(12,2)"
    )
    found = read(write())
    assert (found.name, found.flow.sources(), found.dead_letters) == ("orders", (source,), ())
    (sink,) = found.sinks
    assert isinstance(sink, PostgresSink)
    assert (sink.table, sink.url) == ("orders", "postgresql://shop@localhost/shop")
    assert found.runtime == Spark()
    assert found.checkpoint == str(tmp_path / ".onefold/orders.checkpoint")
    assert found.store_url == sink.store_url(), "the sink's own database"
    reading, writing = found.graph.nodes
    assert (reading.uid, writing.name) == ("orders", "orders")


def test_every_kind_of_sink_and_all_else_that_there_is(write: Write) -> None:
    found = read(
        write(
            "[[sinks]]",
            """\
on_error = "dead_letter"
uid = "of-the-shop"
[sources.client_config]
"fetch.min.bytes" = 1
"socket.keepalive.enable" = true
[sources.dead_letters]
kind = "sql"
url = "sqlite:////tmp/letters.db"
table = "letters"

[[steps]]
sql = "SELECT id, amount FROM source"
schema = "id long, amount decimal(12,2)"

[spark]
master = "local[2]"
processing_time = "10 seconds"
settings = { "spark.sql.shuffle.partitions" = 8 }

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
    assert found.topic.client_config == {"fetch.min.bytes": "1", "socket.keepalive.enable": "true"}
    assert found.spark.trigger() == {"processingTime": "10 seconds"}
    assert (found.spark.master, found.spark.settings) == ("local[2]", {"spark.sql.shuffle.partitions": "8"})
    (letters,) = found.dead_letters
    assert isinstance(letters, SqlSink)
    assert [sink.name for sink in found.everyone][-1] == "letters"
    assert found.graph.letters_of(found.topic.name) is letters
    assert found.graph.nodes[0].uid == "of-the-shop"
    assert found.graph.querying() is not None


STEPS = """\
[[steps]]
filter = "amount > 0"
[[steps]]
with_columns = { cents = "amount * 100" }
[[steps]]
select = { id = "id", cents = "cents" }
[[steps]]
select = ["id", "cents"]
[[steps]]
map_batches = "functions.py:double"
[[steps]]
flat_map = "functions.py:texts"
schema = "id long, text string"
[[steps]]
deduplicate = { span = "2 hours", id = "text" }
uid = "once"
"""


def test_rows_take_one_step_after_the_other(write: Write, tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    graph = read(write("[[sinks]]", f"{STEPS}[[sinks]]")).graph
    assert [type(node.operator).__name__ for node in graph.nodes] == [
        "Reading",
        "Filtering",
        "Selecting",
        "Selecting",
        "Selecting",
        "MappingBatches",
        "FlatMapping",
        "Deduplicating",
        "Writing",
    ]
    assert graph.nodes[-2].uid == "once"
    assert graph.schema(graph.nodes[-1].inputs[0]) == pa.schema({"id": pa.int64(), "text": pa.string()})


@pytest.mark.parametrize(
    ("table", "ids"),
    [
        ("{}", OrderedIds()),
        ('{ span = "2 hours" }', IdsWithin("2 hours")),
        ('{ span = "2 hours", id = "header:id" }', IdsWithin("2 hours", "header:id")),
    ],
)
def test_one_of_several_tables_is_the_one_that_fits(write: Write, table: str, ids: OrderedIds | IdsWithin) -> None:
    step = f'columns = ["key", "headers", "position"]\n[[steps]]\ndeduplicate = {table}\nuid = "once"\n[[sinks]]'
    node = next(node for node in read(write("[[sinks]]", step)).graph.nodes if node.uid == "once")
    assert isinstance(node.operator, Deduplicating) and node.operator.ids == ids


def test_sources_of_one_schema_go_the_same_way(write: Write) -> None:
    second = ORDERS[ORDERS.index("[[sources]]") : ORDERS.index("[[sinks]]")]
    second = second.replace('topics = "orders"', 'topics = "returns"')
    found = read(write("[[sinks]]", f'{second}[[steps]]\nfilter = "amount > 0"\n[[sinks]]'))
    assert [source.name for source in found.flow.sources()] == ["orders", "returns"]
    assert [node.uid for node, _ in found.graph.readings()] == ["orders", "returns"]
    assert [type(node.operator).__name__ for node in found.graph.nodes[2:]] == ["Uniting", "Filtering", "Writing"]
    files = '[[sources]]\nkind = "files"\npath = "/srv/in"\nformat = "json"\nschema = "id long, n long"\n'
    with raises(ConfigError, "union-schemas", "amount"):
        read(write("[[sinks]]", f"{files}[[sinks]]"))
    with raises(ConfigError, "source-twice", "'orders'"):
        read(write("[[sinks]]", f"{second.replace('returns', 'orders')}[[sinks]]"))


@pytest.mark.parametrize(
    ("source", "uid"),
    [
        ('kind = "kafka"\nbootstrap_servers = "h:1"\nformat = "raw"\ntopics = ["a", "b"]', "a-b"),
        ('kind = "kafka"\nbootstrap_servers = "h:1"\nformat = "raw"\ntopics_pattern = "shop_.*"', "shop"),
        ('kind = "postgres"\nurl = "postgresql://h/d"\nschema = "id long"\ntable = "shop.orders"', "table-shop.orders"),
        ('kind = "files"\npath = "/srv/_new orders"\nformat = "json"\nschema = "id long"', "new-orders"),
    ],
)
def test_a_source_without_uid_has_one_that_is_made_of_its_name(write: Write, source: str, uid: str) -> None:
    start, end = ORDERS.index("[[sources]]"), ORDERS.index("[[sinks]]")
    graph = read(write(ORDERS[start:end], f"[[sources]]\n{source}\n")).graph
    assert [node.uid for node, _ in graph.readings()] == [uid]


def test_a_column_may_be_called_as_an_argument_of_pythons(write: Write) -> None:
    steps = '[[steps]]\nwith_columns = { self = "id" }\n[[steps]]\nselect = { self = "self + 1" }\n[[sinks]]'
    found = read(write("[[sinks]]", steps)).graph.nodes[2].schema
    assert found is not None and found.names == ["self"]


def test_the_engine_is_one_word_and_a_table(write: Write) -> None:
    found = read(write("[[sources]]", 'runtime = "engine"\n[engine]\nworkers = 2\nstate = "rocksdb"\n[[sources]]'))
    assert found.runtime == Engine(workers=2, state="rocksdb")
    unaligned = 'runtime = "engine"\n[engine]\nalignment = "unaligned"\nalignment_timeout_s = 5\n[[sources]]'
    assert read(write("[[sources]]", unaligned)).runtime == Engine(alignment="unaligned", alignment_timeout_s=5)
    assert read(write("[[sources]]", "[engine]\nworkers = 2\n[[sources]]")).runtime == Spark(), "the other one's"


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
    found = read(write("[[sinks]]", '[[steps]]\nmap_batches = "functions.py:double"\n[[sinks]]')).graph.nodes[1]
    assert isinstance(found.operator, MappingBatches)
    batch = pa.RecordBatch.from_pydict({"n": [1]})
    assert list(found.operator.function(batch)) == [batch, batch]
    hbase = 'kind = "hbase"\nservers = "h:1"\nrow_key = "id"\nfamily = "f"\nmode = "rolling"\n'
    hbase += 'merge = "functions.py:Of.newest"'
    (sink,) = read(write('kind = "postgres"\nurl = "postgresql://shop@localhost/shop"', hbase)).sinks
    assert isinstance(sink, HBaseSink)


def test_what_a_file_needs_travels_to_workers_that_do_not_have_it(tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    function = imported("functions.py:double", tmp_path)
    have_files_travel()
    (tmp_path / "pickled").write_bytes(cloudpickle.dumps(function))  # type: ignore[no-untyped-call]
    (tmp_path / "functions.py").unlink()
    code = "import pickle, sys; print(list(pickle.load(open(sys.argv[1], 'rb'))(7)))"
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "pickled"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[7, 7]\n"


def test_a_pipeline_in_python_is_as_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs.py").write_text(
        "from onefold.flow import Flow\nfrom onefold.pipeline import Pipeline\nfrom onefold.sinks import SqlSink\n"
        'from onefold.sources import KafkaSource\nflow = Flow("p")\nrows = flow.source(KafkaSource("t",'
        ' bootstrap_servers="b:1"), uid="t")\nrows.sink(SqlSink("sqlite:////tmp/x.db", "t"))\n'
        "pipeline = Pipeline(flow)\nwrong = 3\n"
    )
    assert isinstance(read(f"{tmp_path}/jobs.py:pipeline"), Pipeline)
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
    "a key that there is not": ("topics", "topcs", r"sources\[0\] has no key 'topcs'; did you mean 'topics'\? "),
    "a key of a sink": ("table", "tabel", r"sinks\[0\] has no key 'tabel'; did you mean 'table'\?"),
    "a key of the file": ("name", "nam", r"the file has no key 'nam'; did you mean 'name'\?"),
    "a number for a text": ('name = "orders"', "name = 3", "name: a text is wanted, in quotes"),
    "a text for a number": (SINK, f'{SINK}lock_timeout_s = "long"', r"sinks\[0\].lock_timeout_s: a number is wanted"),
    "a text for a whole number": (
        "[[sinks]]",
        'max_offsets_per_trigger = "5"\n[[sinks]]',
        r"sources\[0\].max_offsets_per_trigger: a whole number is wanted",
    ),
    "a truth for a whole number": (
        "[[sinks]]",
        "max_offsets_per_trigger = true\n[[sinks]]",
        r"sources\[0\].max_offsets_per_trigger: a whole number is wanted",
    ),
    "a text for a truth": ("[[sources]]", 'require_tls = "yes"\n[[sources]]', "require_tls: true or false is wanted"),
    "an empty store": ("[[sources]]", 'store = ""\n[[sources]]', "store is empty: name a URL, or leave it out"),
    "a store that is no URL": ("[[sources]]", 'store = "hunter2"\n[[sources]]', "store: URL cannot be read"),
    "a store in the working directory": (
        "[[sources]]",
        'store = "sqlite:///x.db"\n[[sources]]',
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
        '[sources.dead_letters]\nkind = "postgres"\nurl = "postgresql://h/d"\ntable = "l"\n[[sinks]]',
        "which makes none",
    ),
    "a character that no terminal shows": ('name = "orders"', 'name = "a\\u001b"', "slash or control character"),
    "a table for a list": ("[[sinks]]", "[sinks]", r"sinks: a list is wanted: \[\[sinks\]\] begins one"),
    "a word that is none": (SINK, f'{SINK}delivery = "x"', r"sinks\[0\].delivery: .*'two_phase', 'staged' or 'direct'"),
    "a number in a list": ('topics = "orders"', 'topics = ["a", 3]', r"sources\[0\]\.topics\[1\]: a text is wanted"),
    "another type in one of several tables": (
        "[[sinks]]",
        "[[steps]]\ndeduplicate = { span = 3 }\n[[sinks]]",
        r"steps\[0\].deduplicate.span: a text is wanted",
    ),
    "a key of a table that a text may be, too": (
        'kind = "postgres"\nurl = "postgresql://shop@localhost/shop"',
        'kind = "hbase"\nrow_key = "id"\nfamily = "f"\nservers = { srvrs = "h:1" }',
        r"sinks\[0\].servers has no key 'srvrs'; did you mean 'servers'",
    ),
    "an empty source": (
        ORDERS[ORDERS.index("kind =") : ORDERS.index("[[sinks]]")],
        "",
        r"sources\[0\]: kind is missing: kafka",
    ),
    "an empty sink": (ORDERS[ORDERS.index('kind = "postgres') :], "", r"sinks\[0\]: kind is missing: postgres, sql"),
    "lists in lists": ("[[sources]]", f"x = {'[' * 2000}{']' * 2000}\n[[sources]]", "nested too deeply"),
    "no kind": ('kind = "kafka"\n', "", r"sources\[0\]: kind is missing: kafka"),
    "a kind that there is not": ('"postgres"', '"postgre"', r"there is no kind 'postgre'; did you mean 'postgres'\?"),
    "something is missing": (SINK, "", r"sinks\[0\].table is missing"),
    "no sink": (ORDERS[ORDERS.index("[[sinks]]") :], "", "sinks is missing"),
    "what the constructor refuses": (SINK, f'{SINK}mode = "upsert"', r"sinks\[0\]: "),
    "two sinks of one name": (
        "[[sinks]]",
        ORDERS[ORDERS.index("[[sinks]]") :] + "[[sinks]]",
        "cannot have a second sink 'orders'",
    ),
    "no TOML": ("[[sources]]", "[source", r"this is not TOML: .*line 3"),
    "a variable that is not set": (
        "shop@",
        "${HUNTER_NOT_SET}@",
        r"HUNTER_NOT_SET\} names an environment variable that",
    ),
    "a reference that is none": ("shop@", "${a b}@", "names no environment variable"),
    "a reference without its end": ("shop@", "${SHOP@", "names no environment variable"),
    "no password file": (SINK, f'{SINK}password_file = "x"', "x cannot be read: No such file"),
    "two passwords": ("shop@", "shop:hunter2@", "this one has a password already"),
    "whose password": ("shop@", "", "this one names no user"),
    "a password with an odd character": ("shop@", "shop:a@b:hunter2@", "with odd characters percent-encoded"),
    "two steps in one": (
        "[[sinks]]",
        '[[steps]]\nsql = "SELECT 1"\nmap_batches = "os:walk"\n[[sinks]]',
        r"steps\[0\]: a step is one of .*given: map_batches and sql",
    ),
    "an empty step": ("[[sinks]]", "[[steps]]\n[[sinks]]", r"steps\[0\]: a step is one of .*given: none"),
    "a step that takes no such option": (
        "[[sinks]]",
        '[[steps]]\nfilter = "id > 0"\nschema = "id long"\n[[sinks]]',
        r"steps\[0\]: a step filter takes no schema",
    ),
    "a step that needs another option": (
        "[[sinks]]",
        '[[steps]]\nsql = "SELECT 1"\n[[sinks]]',
        r"steps\[0\]: a step sql needs its schema",
    ),
    "a filter of a column that there is not": (
        "[[sinks]]",
        '[[steps]]\nfilter = "amont > 0"\n[[sinks]]',
        r"steps\[0\]: .*amont",
    ),
    "a filter of words that the language lacks": (
        "[[sinks]]",
        '[[steps]]\nselect = ["id"]\n[[steps]]\nfilter = "rand() > 0"\n[[sinks]]',
        r"steps\[1\]: .*rand",
    ),
    "a filter that is no condition": ("[[sinks]]", '[[steps]]\nfilter = "id + 1"\n[[sinks]]', r"steps\[0\]: .*"),
    "a selection of nothing": ("[[sinks]]", "[[steps]]\nselect = []\n[[sinks]]", r"steps\[0\]: select names no column"),
    "a schema that is none": (
        "[[sinks]]",
        '[[steps]]\nflat_map = "os:walk"\nschema = "id lung"\n[[sinks]]',
        r"steps\[0\]: .*lung",
    ),
    "what Spark makes before other steps": (
        "[[sinks]]",
        '[[steps]]\nsql = "SELECT id FROM source"\nschema = "id long"\n[[steps]]\nfilter = "id > 0"\n[[sinks]]',
        r"steps\[0\] is one that Spark runs, and others follow it",
    ),
    "state of ours beside what Spark makes": (
        "[[sinks]]",
        '[[steps]]\ndeduplicate = { span = "1 day", id = "id" }\nuid = "once"\n[[steps]]\n'
        'sql = "SELECT id FROM source"\nschema = "id long"\n[[sinks]]',
        "once",
    ),
    "an output mode of an operator that has none": (
        "[[sinks]]",
        '[[steps]]\nselect = ["id"]\noutput_mode = "update"\n[[sinks]]',
        r"steps\[0\]: a step select takes no output_mode",
    ),
    "a word of an output mode": (
        "[[sinks]]",
        '[[steps]]\nsql = "SELECT id FROM source"\nschema = "id long"\noutput_mode = "updte"\n[[sinks]]',
        r"steps\[0\].output_mode: one of these is wanted: 'append' or 'update'",
    ),
    "no function": (
        "[[sinks]]",
        '[[steps]]\nmap_batches = "os:wlak"\n[[sinks]]',
        r"steps\[0\].map_batches: os has no 'wlak'; did",
    ),
    "no function's name": (
        "[[sinks]]",
        '[[steps]]\nmap_batches = "walk"\n[[sinks]]',
        r"steps\[0\]: map_batches is a function",
    ),
    "another key of a table": ("[[sinks]]", "[spark]\nevery = 3\n[[sinks]]", "spark has no key 'every'"),
    "a session of Spark's": ("[[sinks]]", "[spark]\nsession = 3\n[[sinks]]", "spark has no key 'session'"),
    "a time that is none": (
        "[[sinks]]",
        '[spark]\nprocessing_time = "10"\n[[sinks]]',
        "spark: processing_time is a time",
    ),
    "a nested key": (
        "[[sinks]]",
        '[[steps]]\ndeduplicate = { span = "1 day", ide = "k" }\n[[sinks]]',
        "did you mean 'id'",
    ),
    "a runtime that there is not": (
        "[[sources]]",
        'runtime = "flink"\n[[sources]]',
        "runtime: one of these is wanted: 'engine' or 'spark'",
    ),
    "what only Spark runs on the engine": (
        "[[sources]]\n" + ORDERS[ORDERS.index("kind =") : ORDERS.index("[[sinks]]")],
        'runtime = "engine"\n[[sources]]\n'
        + ORDERS[ORDERS.index("kind =") : ORDERS.index("[[sinks]]")]
        + '[[steps]]\nsql = "SELECT id FROM source"\nschema = "id long"\n',
        "only Spark runs",
    ),
    "settings without a flow": ("[[sinks]]", "[settings]\nx = 1\n[[sinks]]", "settings are for a flow that is named"),
    "a flow beside sources": ("[[sources]]", 'flow = "x.py:flow"\n[[sources]]', "which has its own sources, sinks"),
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


FLOW = """\
from onefold.flow import Flow
from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource

def made(settings):
    flow = Flow(settings.get("name", "shop"))
    source = KafkaSource(settings["topic"], bootstrap_servers="b:1", format="json", schema="id long")
    flow.source(source, uid="orders").filter(f"id > {settings['above']}").sink(PostgresSink(settings["url"], "orders"))
    return flow

def nothing(settings):
    return settings["topc"]

def tells(settings):
    return int(settings["url"])

flow = made({"topic": "orders", "above": 0, "url": "postgresql://localhost/shop"})
number = 3
"""
SETTINGS = """\
[settings]
topic = "orders"
above = 7
url = "postgresql://shop:${file:password}@${HOST_OF_SHOP}/shop"
"""


def test_a_flow_in_python_is_named_or_made_of_the_files_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "shop.py").write_text(FLOW)
    (tmp_path / "password").write_text("hunter2\n")
    monkeypatch.setenv("HOST_OF_SHOP", "db")
    file = tmp_path / "shop.toml"
    file.write_text('flow = "jobs/shop.py:flow"\nruntime = "engine"\nstop_within_s = 5\n')
    found = read(str(file))
    assert (found.name, found.runtime, found.stop_within_s) == ("shop", Engine(), 5)
    assert found.checkpoint == str(tmp_path / ".onefold/shop.checkpoint")
    file.write_text(f'name = "shop"\nflow = "jobs/shop.py:made"\n{SETTINGS}')
    found = read(str(file))
    (sink,) = found.sinks
    assert isinstance(sink, PostgresSink) and sink.url == "postgresql://shop:hunter2@db/shop"
    assert found.topic.topics == ("orders",)
    assert "hunter2" not in repr(found)


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ('flow = "shop.py:flow"\n[settings]\nx = 1', "options-conflict", "is no function of settings"),
        ('flow = "shop.py:flow"\nname = "other"', "options-conflict", "the flow is 'shop'"),
        ('flow = "shop.py:number"', "option-value", "shop.py:number is int"),
        ('flow = "shop.py:nothing"', "reference-broken", "KeyError: 'topc'"),
        (
            f'flow = "shop.py:tells"\n{SETTINGS.replace("${HOST_OF_SHOP}", "db")}',
            "reference-broken",
            "is not shown",
        ),
        ('flow = "shop.py:floe"', "reference-missing", "did you mean 'flow'"),
        ('flow = "shop"', "reference-invalid", "'shop' names no object"),
        ('flow = "shop.py:flow"\n[[steps]]\nfilter = "id > 0"', "options-conflict", "which has its own steps"),
        (f'flow = "shop.py:made"\n{SETTINGS}', "environment-variable-missing", "HOST_OF_SHOP"),
    ],
)
def test_a_flow_that_cannot_be_made_is_one_error_with_its_name(tmp_path: Path, text: str, code: str, says: str) -> None:
    (tmp_path / "shop.py").write_text(FLOW)
    (tmp_path / "password").write_text("hunter2\n")
    file = tmp_path / "shop.toml"
    file.write_text(text)
    with raises(ConfigError, code, says) as refused:
        read(str(file))
    assert refused.value.message.startswith(f"{file}: ")
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("written", ["orders.toml", "functions.py"])
@pytest.mark.parametrize(("mode", "who"), [(0o666, "any user"), (0o660, "a group")])
def test_a_file_that_others_may_write_is_refused(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, mode: int, who: str
) -> None:
    functions = tmp_path / "functions.py"
    functions.write_text(FUNCTIONS)
    path = write("[[sinks]]", '[[steps]]\nmap_batches = "functions.py:double"\n[[sinks]]')
    monkeypatch.setattr("onefold.pipeline.references._is_of_one", lambda _user, _group: False)
    (tmp_path / written).chmod(mode)
    with raises(ConfigError, "file-writable-by-others", f"{tmp_path / written} may be written by {who}"):
        read(path)
    (tmp_path / written).chmod(0o644)
    assert read(path).name == "orders"


def test_a_package_that_others_may_write_is_refused_before_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "shop_of_all"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('it ran')\n")
    (package / "jobs.py").write_text("pipeline = None\n")
    (package / "__init__.py").chmod(0o666)
    monkeypatch.syspath_prepend(tmp_path)
    with raises(ConfigError, "file-writable-by-others", "__init__"):
        read("shop_of_all.jobs:pipeline")


def test_a_group_that_is_the_owners_alone_may_write(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(write())
    path.chmod(0o664)
    monkeypatch.setattr("onefold.pipeline.references._is_of_one", lambda _user, _group: True)
    assert read(str(path)).name == "orders"
    path.chmod(0o666)
    with raises(ConfigError, "file-writable-by-others"):
        read(str(path))


def test_what_a_source_leaves_open_is_found_once_and_stays_what_the_first_start_found(
    tmp_path: Path, write: Write
) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "1.parquet")
    kafka = ORDERS[ORDERS.index("[[sources]]") : ORDERS.index("[[sinks]]")]
    files = f'store = "sqlite:///{tmp_path}/p.db"\n[[sources]]\nkind = "files"\npath = "{tmp_path}"\nname = "in"\n'
    path = write(kafka, f'{files}format = "parquet"\npattern = "*.parquet"\n')
    found = read(path)
    assert not found.flow.is_settled
    assert found.graph.schemas()["orders"].names == ["id"]
    with closing(CheckpointStore(found.store_url)) as store:
        pin(store, "orders", "parquet schema of in", lambda: "id long, n long")
    assert read(path).graph.schemas()["orders"].names == ["id", "n"]


def test_a_module_that_lies_beside_a_pipelines_file_is_said_to_be_found_by_pythonpath(tmp_path: Path) -> None:
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
    found = read(write("[[sinks]]", '[sources.client_config]\n"sasl.password" = "${file:password}"\n[[sinks]]'))
    assert found.topic.client_config == {"sasl.password": "hunter/2@ü"}
    assert "hunter" not in repr(found)
