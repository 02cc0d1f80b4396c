"""The `onefold` command without any server: what its options become, and how its answers and errors are shown."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
from harness.definitions import named, piped
from rich.console import Console
from typer.testing import CliRunner

from onefold.cli import entry, main
from onefold.cli.commands.verify import print_verification
from onefold.core import ConfigError, Positions, Sink
from onefold.core.invariants import Comparison
from onefold.core.testing import CONFIGURATIONS, Fault
from onefold.sinks import KafkaSink, PostgresSink, SqlSink
from onefold.sources import KafkaSource
from onefold.spark import session
from onefold.spark.flows.flow_writer import FlowWriter
from onefold.spark.verify import verification
from onefold.spark.verify.verification import Verification
from onefold.store.checkpoint_store import CheckpointStore

ODD = "no column '[/b]' of [red], but [1, 2]"
URL = "postgresql://nowhere/shop"


def test_an_error_is_shown_as_it_is_and_its_exit_code_says_its_kind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ConfigError("option-value", ODD)

    monkeypatch.setattr(main, "app", fail)
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == ConfigError.exit_code
    assert capsys.readouterr().err == f"ConfigError: {ODD} [option-value]\n"


def test_a_key_that_is_wrong_is_shown_as_it_is() -> None:
    found = Comparison(1, 0, lost=1, duplicated=0, changed=0, unexpected=0, samples={"lost": [f"id={ODD}"]})
    result = Verification(found, Positions(), 1, {"no-loss": (f"t lacks 1 records: id={ODD}",), "chain": ()})
    text = io.StringIO()
    print_verification(Console(file=text, width=200), result, "[/b]")
    assert "[/b]: NOT exact" in text.getvalue()
    assert f"lost: id={ODD}\n" in text.getvalue()
    assert f"no-loss: t lacks 1 records: id={ODD}\n" in text.getvalue()


def defined(*sinks: Sink, **more: Any) -> str:
    """A pipeline into these sinks, as a command takes it; none of its servers is there."""
    source = KafkaSource("orders", bootstrap_servers="nowhere:9092", format="json", schema="id long, n long")
    return named(piped("p", source=source, sinks=sinks, **more))


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--key=id, n"], {"shop.orders": ["id", "n"], "newest": ("n",), "sales": ["id", "n"], "events": ()}),
        (["--sink=newest", "--sink=sales"], {"newest": ("n",), "sales": ()}),
    ],
)
def test_verify_takes_each_sink_in_turn_or_those_named_and_a_key_where_a_sink_has_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: list[str], wanted: dict[str, Any]
) -> None:
    with closing(CheckpointStore(f"sqlite:///{tmp_path}/store.db")) as store:
        store.freeze(store.acquire("p", 0), Positions())
    asked: dict[str, Any] = {}

    def verify(_spark: Any, writer: FlowWriter, sink: Sink, key: Sequence[str], *_: Any) -> Verification:
        asked[sink.name] = key
        assert writer.name == "p"
        is_wrong = {"no-loss": ("1 lost",)} if sink.name == "newest" else {}
        return Verification(Comparison(0, 0, 0, 0, 0, 0), Positions(), 0, is_wrong)

    monkeypatch.setattr(verification, "verify", verify)
    monkeypatch.setattr(session, "session_of_ones_own", lambda *_: nullcontext())
    upserting = PostgresSink(URL, table="shop.newest", name="newest", mode="upsert", key="n", order="id")
    sales = KafkaSink("sales", bootstrap_servers="nowhere:9092")
    events = KafkaSink("events", bootstrap_servers="nowhere:9092", delivery="keyed", id="id")
    pipeline = defined(
        PostgresSink(URL, table="shop.orders"), upserting, sales, events, store=f"sqlite:///{tmp_path}/store.db"
    )
    answer = CliRunner().invoke(main.app, ["verify", pipeline, "--json", *options])
    assert asked == wanted, answer.exception
    found = json.loads(answer.stdout)
    assert (answer.exit_code, found["exact"]) == (1, False)
    assert {name: result["exact"] for name, result in found["sinks"].items()} == {
        name: name != "newest" for name in wanted
    }


def test_rows_of_which_nobody_can_tell_are_no_difference_and_have_an_exit_code_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with closing(CheckpointStore(f"sqlite:///{tmp_path}/store.db")) as store:
        store.freeze(store.acquire("p", 0), Positions())
    found = Verification(Comparison(9, 7, 0, 0, 0, 0, untold=2), Positions(), 1, {"no-loss": ()})
    monkeypatch.setattr(verification, "verify", lambda *_: found)
    monkeypatch.setattr(session, "session_of_ones_own", lambda *_: nullcontext())
    pipeline = defined(PostgresSink(URL, table="orders"), store=f"sqlite:///{tmp_path}/store.db")
    answer = CliRunner().invoke(main.app, ["verify", pipeline, "--key=id"])
    assert answer.exit_code == 2 and "orders: exact, but of 2 rows nobody can tell any more" in answer.output
    untold = json.loads(CliRunner().invoke(main.app, ["verify", pipeline, "--key=id", "--json"]).stdout)
    assert (untold["exact"], untold["sinks"]["orders"]["comparison"]["untold"]) == (True, 2)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "sink 'mirror' appends, so which columns name a row has to be said: --key id"),
        (["--sink=orders"], "sink 'orders' appends, so which columns name a row has to be said: --key id"),
        (["--sink=order"], "pipeline 'p' has no sink 'order'; did you mean 'orders'"),
        (["--sink=orders", "--key=id"], "p.db has nothing of pipeline 'p'"),
        (["--sink=orders", "--key=id", "--expect= "], "--expect   is empty"),
        (["--key=id", "--expect=SELECT id FROM source"], "--expect is for one sink's rows: name it, --sink"),
        (["--key=id", "--until=orders/0=5"], "--until is for --without-ledger"),
        (["--key=id", "--without-ledger", "--until=5"], "--until is a partition and an offset"),
        (["--key=id", "--against=copy.toml"], "--against is for --without-ledger"),
        (["--key=id", "--without-ledger", "--against=copy.toml", "--plan=new.sql"], "--plan is for what a sink has"),
        (["--key=id", "--plan=one", "--html=one"], "--plan and --html both name one"),
    ],
)
def test_what_cannot_be_verified_is_said_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: list[str], says: str
) -> None:
    monkeypatch.setattr(session, "session_of_ones_own", pytest.fail)
    store = f"sqlite:///{tmp_path}/p.db"
    pipeline = defined(SqlSink("sqlite:////nowhere/shop.db", "mirror"), PostgresSink(URL, table="orders"), store=store)
    refused = CliRunner().invoke(main.app, ["verify", pipeline, *options])
    assert isinstance(refused.exception, ConfigError)
    assert says in str(refused.exception)
    assert not (tmp_path / "p.db").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "each of these says it: 'newest' by n; 'events' by their ids. Leave --key out"),
        (["--sink=newest"], "each of these says it: 'newest' by n. Leave --key out"),
    ],
)
def test_a_key_that_no_sink_takes_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: list[str], says: str
) -> None:
    monkeypatch.setattr(session, "session_of_ones_own", pytest.fail)
    upserting = PostgresSink(URL, table="newest", mode="upsert", key="n", order="id")
    events = KafkaSink("events", bootstrap_servers="nowhere:9092", delivery="keyed", id="id")
    pipeline = defined(upserting, events, store=f"sqlite:///{tmp_path}/p.db")
    refused = CliRunner().invoke(main.app, ["verify", pipeline, "--key=id", *options])
    assert isinstance(refused.exception, ConfigError) and refused.exception.code == "key-mismatch"
    assert says in str(refused.exception)
    same = CliRunner().invoke(main.app, ["verify", pipeline, "--key=n", "--sink=newest"])
    assert "[pipeline-unknown]" in str(same.exception), "its own key may be named"


def test_a_schedule_is_run_again_as_it_was_printed_and_anything_else_is_refused() -> None:
    schedule = CONFIGURATIONS["two-phase"].and_then(3, Fault.CRASH).to_json()
    again = CliRunner().invoke(main.app, ["prove", "--replay", schedule])
    assert again.exit_code == 0, again.output
    assert "no invariant was broken" in again.output
    for wrong in ("{", "{}", "3", schedule.replace("CRASH", "NAP")):
        refused = CliRunner().invoke(main.app, ["prove", "--replay", wrong])
        assert isinstance(refused.exception, ConfigError), wrong


def test_two_pipelines_of_one_process_have_names_and_checkpoints_of_their_own() -> None:
    source = KafkaSource("orders", bootstrap_servers="nowhere:9092")
    for names, says in ((("p", "p"), "'p' is named twice"), (("p", "q"), "two pipelines have the checkpoint /tmp/c")):
        made = [piped(name, source=source, sinks=[PostgresSink(URL, table="t")], checkpoint="/tmp/c") for name in names]
        refused = CliRunner().invoke(main.app, ["run", *map(named, made)])
        assert isinstance(refused.exception, ConfigError)
        assert says in str(refused.exception)


def test_letters_says_of_which_source_none_are_kept() -> None:
    source = KafkaSource("orders", bootstrap_servers="localhost:1", format="json", schema="id long", on_error="skip")
    pipeline = named(piped("p", source=source, sinks=[SqlSink("sqlite:////nowhere/shop.db", "mirror")]))
    answer = CliRunner().invoke(main.app, ["letters", pipeline], catch_exceptions=False)
    assert (answer.exit_code, "no dead letters" in answer.output) == (0, True)
    assert "orders are skipped" in answer.output
