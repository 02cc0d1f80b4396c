"""One definition of each option: constructors, Spark's options, TOML's keys, the schema and the example agree."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.clients.option_texts import option_fields
from onefold.core import ConfigError
from onefold.pipeline import Pipeline, read
from onefold.pipeline.toml_models import SINKS, SOURCES, FileTable, SourceTable, file_table, meanings, tables_in
from onefold.sources import KafkaSource

TABLE = file_table()


def every_table() -> dict[str, type[FileTable]]:
    found, seen = [TABLE], dict[str, type[FileTable]]()
    while found:
        table = found.pop()
        seen[table.__name__] = table
        found += [one for field in table.model_fields.values() for one in tables_in(field.annotation)]
    return seen


@pytest.mark.parametrize("table", every_table().values(), ids=every_table())
def test_keys_are_what_the_constructor_takes_and_each_has_a_meaning(table: type[FileTable]) -> None:
    is_source = issubclass(table, SourceTable)
    keys = {*table.known()} - {"kind", "password_file"} - ({"uid", "dead_letters"} if is_source else set())
    takes = {*inspect.signature(table.MAKES).parameters} - {"session"}
    assert keys == takes
    required = {field.alias for field in table.model_fields.values() if field.is_required()} - {None}
    parameters = inspect.signature(table.MAKES).parameters.values()
    assert required == {one.name for one in parameters if one.default is inspect.Parameter.empty}
    assert {*meanings()[table.__name__]} >= keys
    assert all(field.description for field in table.model_fields.values() if field.alias)


def test_sparks_options_are_the_same_ones() -> None:
    (source,) = [one for one in tables_in(TABLE.model_fields["sources_"].annotation) if one.KIND == "kafka"]
    of_spark = {field.name for field in option_fields(KafkaSource).values()}
    assert of_spark == {*source.known()} - {"kind", "uid", "dead_letters"}, "which are the flow's, not the reader's"


def test_the_schema_is_a_json_schema_of_all_that() -> None:
    printed = json.loads(CliRunner().invoke(app, ["schema"]).output)
    assert printed["additionalProperties"] is False
    assert {*printed["properties"]} == {*TABLE.known()}
    assert "required" not in printed, "a flow in Python has its own name, sources and sinks"
    for key, kinds in (("sources", SOURCES), ("sinks", SINKS)):
        assert {*printed["properties"][key]["items"]["discriminator"]["mapping"]} == {*kinds}
    assert {*printed["$defs"]["Step"]["properties"]} >= {"filter", "select", "map_batches", "sql"}
    postgres = printed["$defs"]["PostgresSink"]["properties"]
    assert postgres["delivery"]["enum"] == ["auto", "two_phase", "staged", "direct"]
    assert postgres["table"]["description"].startswith("the table, orders or shop.orders")
    assert printed["$defs"]["KafkaSource"]["properties"]["kind"]["const"] == "kafka"


@pytest.mark.parametrize("sinks", [[kind] for kind in SINKS] + [[*SINKS]])
def test_what_new_writes_is_a_pipeline_with_every_key(sinks: list[str], tmp_path: Path) -> None:
    path = tmp_path / "orders.toml"
    written = CliRunner().invoke(app, ["new", str(path), *(f"--sink={kind}" for kind in sinks)])
    assert (written.exit_code, "onefold validate" in written.output) == (0, True)
    text = path.read_text()
    found = read(str(path))
    assert (found.name, len(found.sinks)) == ("orders", len(sinks))
    checked = CliRunner().invoke(app, ["validate", str(path)])
    assert checked.exit_code == 0, checked.output
    keys = re.findall(r"^(?:# )?(\w+) = ", text, re.MULTILINE)
    wanted = [
        key
        for key in TABLE.known()
        if key not in ("sources", "steps", "sinks", "spark", "engine", "restart", "flow", "settings")
    ]
    assert {*wanted} <= {*keys}
    assert "# [sources.dead_letters]" in text


@pytest.mark.parametrize("sink", SINKS)
def test_what_new_comments_out_is_the_default(sink: str, tmp_path: Path) -> None:
    path, one = tmp_path / "orders.toml", tmp_path / "one" / "orders.toml"
    one.parent.mkdir()
    CliRunner().invoke(app, ["new", str(path), f"--sink={sink}"])
    lines = path.read_text().splitlines()
    commented = [at for at, line in enumerate(lines) if re.match(r"# \w+ = (?!\.\.\.)", line)]
    assert len(commented) > 20
    for at in commented:
        one.write_text("\n".join([*lines[:at], lines[at].removeprefix("# "), *lines[at + 1 :]]))
        found, wanted = read(str(one)), replace(read(str(path)), directory=str(one.parent), checkpoint="")
        assert known(found) == known(wanted), lines[at]


def known(pipeline: Pipeline) -> dict[str, object]:
    """All that a pipeline's file says; flows and sinks have no equality of their own."""
    (sink,) = pipeline.sinks
    settings = getattr(sink, "settings", None) or getattr(sink, "_settings", None)
    steps = pipeline.flow.explain().splitlines()
    return {**vars(pipeline), "flow": (pipeline.flow.sources(), steps, settings), "named": ""}


@pytest.mark.parametrize("name", ["ü", "😀", 'q"x', "a.b"])
def test_a_file_may_be_called_as_a_pipeline_may(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.toml"
    assert CliRunner().invoke(app, ["new", str(path)]).exit_code == 0
    assert tomllib.loads(path.read_text())["name"] == name


def test_sinks_of_one_kind_have_names_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "orders.toml"
    CliRunner().invoke(app, ["new", str(path), "--sink=postgres", "--sink=sql", "--sink=sql", "--sink=sql"])
    assert [sink.name for sink in read(str(path)).sinks] == ["orders", "orders-sql", "orders-sql-2", "orders-sql-3"]


def test_new_never_writes_over_a_file_and_says_what_kinds_there_are(tmp_path: Path) -> None:
    path = tmp_path / "orders.toml"
    path.write_text("mine")
    for command, says in (
        ([str(path)], "is there already"),
        ([str(tmp_path / "x.json")], "has to end in .toml"),
        ([str(tmp_path / "my orders.toml")], "the pipeline is called as its file, and a pipeline's name has"),
        ([str(tmp_path / "x.toml"), "--sink=postgre"], "did you mean 'postgres'"),
        ([str(tmp_path / "no" / "x.toml")], "cannot be written: No such file"),
    ):
        refused = CliRunner().invoke(app, ["new", *command])
        assert isinstance(refused.exception, ConfigError)
        assert says in str(refused.exception)
    assert path.read_text() == "mine"


def test_validate_tells_of_all_files_and_ends_as_the_first_wrong_one(tmp_path: Path) -> None:
    CliRunner().invoke(app, ["new", str(tmp_path / "orders.toml")])
    (tmp_path / "wrong.toml").write_text("name = 3")
    ended = CliRunner().invoke(app, ["validate", *(str(tmp_path / name) for name in ("wrong.toml", "orders.toml"))])
    assert ended.exit_code == ConfigError.exit_code
    assert "pipeline 'orders', on Spark into orders" in ended.output
    assert "wrong.toml: name: a text is wanted" in ended.output


_WITHOUT_HBASE = """
import sys
sys.modules["thriftpy2"] = None  # an import of it fails
from onefold.pipeline import Pipeline, read
read(sys.argv[1])
try:
    read(sys.argv[2])
except Exception as error:
    print(error)
"""


_ALONE = """
import sys
for name in ("thriftpy2", "confluent_kafka", "psycopg", "sqlalchemy"):
    sys.modules[name] = None
from onefold.pipeline import read
try:
    read(sys.argv[1])
except Exception as error:
    print(error.code)
"""


def test_a_file_that_names_its_flow_needs_no_packages_of_kinds_that_the_flow_has_not(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from onefold.flow import Flow\nflow = Flow('shop')\n")
    (tmp_path / "shop.toml").write_text('flow = "shop.py:flow"\nruntime = "engine"\n')
    command = [sys.executable, "-c", _ALONE, tmp_path / "shop.toml"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "sink-names\n", "it was read, and only has no sink"


def test_a_kind_whose_packages_are_missing_is_no_matter_to_the_others(tmp_path: Path) -> None:
    paths = [tmp_path / f"{kind}.toml" for kind in ("postgres", "hbase")]
    for path in paths:
        CliRunner().invoke(app, ["new", str(path), f"--sink={path.stem}"])
    command = [sys.executable, "-c", _WITHOUT_HBASE, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "install onefold[hbase]" in done.stdout
