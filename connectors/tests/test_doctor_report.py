"""What `onefold doctor` prints of what was found."""

from __future__ import annotations

import io

from rich.console import Console

from onefold.cli.commands.doctor import print_diagnosis, print_plan
from onefold.core import ConfigError, Guarantee, SinkKind
from onefold.core.findings import Finding, Level
from onefold.operate.doctor import Diagnosis, SinkDiagnosis

PROMISE = Guarantee("two_phase", SinkKind.TWO_PHASE, False, ("the server keeps what it acknowledged",))


def printed(show: object, *sinks: SinkDiagnosis) -> str:
    console = Console(file=io.StringIO(), width=200, soft_wrap=True)
    show(console, Diagnosis("p", (), (), (), sinks))  # type: ignore[operator]
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_of_a_sink_that_does_not_start_it_does_not_say_what_holds() -> None:
    lax = Finding(Level.PROBLEM, "fsync is off", ("no-loss",))
    for finding, says in ((Finding.of(ConfigError("table-mismatch", "it does not fit")), False), (lax, True)):
        text = printed(print_diagnosis, SinkDiagnosis("t", PROMISE, (finding,)))
        assert ("  holds: " in text) is ("on condition that" in text) is says
        assert "the guarantee does NOT hold" in text
    assert "does not hold: no-loss (fsync is off)" in text


def test_a_trouble_that_two_sinks_share_is_told_once_and_then_referred_to() -> None:
    refused = Finding.of(ConfigError("postgres-connection-refused", "Postgres refuses us"))
    sinks = [SinkDiagnosis(name, None, (refused,)) for name in ("t", "dead")]
    text = printed(print_diagnosis, *sinks)
    assert text.count("Postgres refuses us") == 1
    assert "sink dead\n  PROBLEM the same as above [postgres-connection-refused]" in text
    assert printed(print_plan, *sinks).count("Postgres refuses us") == 1


def test_a_code_stands_behind_a_table_and_not_in_its_last_row() -> None:
    shown = Finding.of(ConfigError("table-mismatch", "the rows do not fit:\n  id  bigint  integer"))
    text = printed(print_diagnosis, SinkDiagnosis("t", PROMISE, (shown,)))
    assert "integer\n[table-mismatch]\n" in text
