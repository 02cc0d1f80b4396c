"""The `onefold` command without any server: what its options become, and how its answers and errors are shown."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from onefold.cli import entry, main
from onefold.cli.verify import command
from onefold.cli.verify.command import print_verification
from onefold.core import ConfigError, Positions
from onefold.core.invariants import Comparison
from onefold.core.testing import CONFIGURATIONS, Fault
from onefold.sinks.postgres.naming import Table
from onefold.sinks.staged.upsert import Changes
from onefold.spark.verify.verification import Verification

ODD = "no column '[/b]' of [red], but [1, 2]"
VERIFY = ["verify", "--pipeline=p", "--postgres=postgresql://nowhere/shop", "--bootstrap-servers=nowhere:9092"]
UPSERT = ["--mode=upsert", "--order=changed_at, n"]


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
    print_verification(Console(file=text, width=200), result)
    assert f"lost: id={ODD}\n" in text.getvalue()
    assert f"no-loss: t lacks 1 records: id={ODD}\n" in text.getvalue()


def test_the_options_of_verify_set_sink_and_source_up_as_a_pipeline_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def verify(**told: Any) -> Verification:
        asked.append(told)
        return Verification(Comparison(0, 0, 0, 0, 0, 0), Positions(), 0, {})

    def run(*options: str) -> Any:
        answer = CliRunner().invoke(main.app, [*VERIFY, "--table=shop.orders", "--topic=a, b", *options])
        assert answer.exit_code == 0, answer.output
        return asked[-1]

    monkeypatch.setattr(command, "run_verification", verify)
    told = run("--schema=id long", "--key=id, n")
    assert told["key"] == ["id", "n"]
    assert told["source"].topics == ("a", "b")
    assert "position" not in told["source"].columns
    assert (told["sink"].name, told["sink"].settings.changes, told["sink"].settings.on_error) == (
        "shop.orders",
        None,
        "fail",
    )
    told = run("--schema=id long", "--key=id", *UPSERT, "--delete-when-null=name", "--ledger=books")
    assert told["sink"].settings.changes == Changes(("id",), ("changed_at", "n"), delete_when_null="name")
    assert told["sink"].settings.ledger == "books"
    told = run(
        "--schema=id long",
        "--key=id",
        *UPSERT,
        "--delete-when-true=gone",
        "--on-error=dead_letter",
        "--rejects-table=shop.bad",
        "--source-position=kafka_partition, kafka_offset",
        "--positions",
    )
    settings = told["sink"].settings
    assert settings.changes == Changes(("id",), ("changed_at", "n"), delete_when_true="gone")
    assert (settings.on_error, settings.rejects) == ("dead_letter", Table("shop", "bad"))
    assert settings.source_position == ("kafka_partition", "kafka_offset")
    assert "position" in told["source"].columns


def test_a_schedule_is_run_again_as_it_was_printed_and_anything_else_is_refused() -> None:
    schedule = CONFIGURATIONS["two-phase"].and_then(3, Fault.CRASH).to_json()
    again = CliRunner().invoke(main.app, ["prove", "--replay", schedule])
    assert again.exit_code == 0, again.output
    assert "no invariant was broken" in again.output
    for wrong in ("{", "{}", "3", schedule.replace("CRASH", "NAP")):
        refused = CliRunner().invoke(main.app, ["prove", "--replay", wrong])
        assert isinstance(refused.exception, ConfigError), wrong


def test_options_that_contradict_one_another_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = [*VERIFY, "--table=t", "--topic=t", "--schema=id long", "--key=id"]
    for wrong in (["--order=n"], ["--mode=upsert"], ["--source-position=kafka_offset"]):
        monkeypatch.setattr(sys, "argv", ["onefold", *right, *wrong])
        with pytest.raises(SystemExit) as ended:
            entry.main()
        assert ended.value.code == ConfigError.exit_code, wrong
