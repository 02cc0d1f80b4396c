"""docs/mechanisms.md: commands, typed for pipelines of each mechanism."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from harness.daemons import ORDERS_FILE, TOTALS_FILE, TOTALS_FLOW, Start
from harness.renewing import assert_renewed
from harness.support import Rig
from harness.typed_commands import TypedCommands

PAGE = Path(__file__).parents[2] / "docs" / "mechanisms.md"
TEST = "integration-tests/daemon/test_mechanism_commands.py"
CODE = re.compile(r"\[([a-z-]+)\]$", re.MULTILINE)
NONE = "mechanism-without-snapshots"
NOWHERE = {"transaction": "mechanism-without-positions"}
MECHANISMS = ("barriers", "microbatch", "transaction", "ack")

# By the mechanism an error's code; where it has none the command works.
Outcomes = Mapping[str, str]
RUNNING: Mapping[str, Outcomes] = {
    "status": {},
    "epochs orders": {},
    "page": {},
    "pause orders totals": {},
    "resume orders totals": {},
}
STOPPED: Mapping[str, Outcomes] = {
    "plan orders.toml": {},
    "doctor orders.toml": {},
    "doctor totals.toml": {},
    "positions orders.toml": NOWHERE,
    "positions totals.toml": NOWHERE,
    "savepoint create orders.toml --name s": NOWHERE,
    "savepoint restore orders.toml s --yes": {"transaction": "savepoint-missing"},
    "savepoint create totals.toml --name s": {"transaction": NONE, "ack": NONE},
    "savepoint restore totals.toml s --yes": {"transaction": "savepoint-missing", "ack": "savepoint-missing"},
    "state get totals.toml totals 1 --within 0": {
        **dict.fromkeys(MECHANISMS, "state-not-running"),
        "transaction": NONE,
        "ack": NONE,
    },
    "state get totals.toml totals 1 --offline": {"transaction": NONE, "ack": NONE},
    "verify orders.toml --key id": NOWHERE,
    "verify totals.toml": dict.fromkeys(MECHANISMS, "verify-unsupported"),
    "positions orders.toml --set latest --yes": NOWHERE,
    "positions totals.toml --set latest --yes": {**dict.fromkeys(MECHANISMS, "state-not-movable"), **NOWHERE},
    "sinks orders.toml": {},
    "letters orders.toml": {},
    "txn list orders.toml": {},
    "txn resolve orders.toml --yes": {},
    "recover orders.toml --yes": {},
    "recover totals.toml --yes": {},
    "reset orders.toml --rows --yes": {},
    "reset totals.toml --yes": {},
}


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_command_does_under_a_mechanism_what_the_page_says(
    rig: Rig, start: Start, mechanism: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    typed = TypedCommands(rig.directory, monkeypatch, capfd)
    monkeypatch.setenv("DATABASE", rig.url)
    told: dict[str, Any] = {"runtime": "engine", "topic": rig.topic, "servers": rig.servers, "url": rig.url}
    engine = f'[engine]\nmechanism = "{mechanism}"\n'
    (typed.folder / "orders.toml").write_text(ORDERS_FILE.format(**told, source="timeout_s = 3", tables=engine))
    (typed.folder / "jobs").mkdir()
    (typed.folder / "jobs" / "totals.py").write_text(TOTALS_FLOW)
    (typed.folder / "totals.toml").write_text(TOTALS_FILE.format(**told) + engine)
    unlike: list[str] = []

    def type_all(commands: Mapping[str, Outcomes]) -> None:
        for arguments, outcomes in commands.items():
            code, out, err = typed.run(*shlex.split(arguments))
            found = "" if code == 0 else (CODE.findall(err) or CODE.findall(out) or [f"exit code {code}"])[-1]
            if found != outcomes.get(mechanism, ""):
                unlike.append(f"{arguments}: {found or 'works'}, not {outcomes.get(mechanism) or 'works'}\n{out}{err}")

    rig.put(40)
    daemon = start(typed.folder / "orders.toml", typed.folder / "totals.toml")
    monkeypatch.setenv("ONEFOLD_URL", daemon.url)

    def are_there() -> bool:
        tables = rig.sql("SELECT to_regclass('rows') IS NOT NULL AND to_regclass('totals') IS NOT NULL")
        if not tables[0][0]:
            return False
        return rig.sql("SELECT (SELECT count(*) FROM rows), (SELECT coalesce(sum(orders), 0) FROM totals)") == [
            (40, 40)
        ]

    daemon.until(are_there, "rows and totals")
    type_all(RUNNING)
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.wait() == 0, daemon.text()
    rig.put(4)  # which the positions are moved over
    type_all(STOPPED)
    assert not unlike, "\n".join(unlike)


@pytest.mark.docs
def test_the_page_has_the_commands() -> None:
    lines = [f"| Command | {' | '.join(f'`{each}`' for each in MECHANISMS)} |", "| --- " * (len(MECHANISMS) + 1) + "|"]
    for arguments, outcomes in {"run orders.toml totals.toml": {}, **RUNNING, **STOPPED}.items():
        cells = [f"`{code}`" if (code := outcomes.get(each)) else "works" for each in MECHANISMS]
        lines.append(f"| `onefold {arguments}` | {' | '.join(cells)} |")
    assert_renewed(PAGE, TEST, "\n".join(lines))
