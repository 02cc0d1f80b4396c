"""Tables of pipelines and epochs, as the API has them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rich.markup import escape
from rich.table import Table

from onefold.cli.tables import table_console
from onefold.core.values.plain import SAID_MAX, plain

__all__ = ["print_epochs", "print_pipelines"]

_COLOURS = {
    **dict.fromkeys(("running", "finished", "complete"), "green"),
    **dict.fromkeys(("paused", "waiting", "stopping", "stopped", "starting", "open", "decided"), "yellow"),
    **dict.fromkeys(("failed", "fenced", "damaged"), "red"),
}
_UNKNOWN = "?"


def print_pipelines(found: Sequence[dict[str, Any]]) -> None:
    table = _table("pipeline", "state", "generation", "epoch", "completed", "behind", "in doubt", "restarts")
    for one in found:
        completed = one["latest"]["completed"]
        table.add_row(
            escape(plain(one["name"])),
            _coloured(one["state"]),
            _number(one["generation"]),
            _number(one["epoch"]),
            _time(completed and completed["completed_at"]),
            _number(one["lag_records"]),
            _number(one["in_doubt"]),
            _number(one["restarts"]),
        )
    console = table_console()
    console.print(table)
    for one in found:
        for key, done in (("savepoint", "made"), ("savepoint_restored", "restored")):
            if (savepoint := one["latest"][key]) is not None:
                of = f"{plain(savepoint['name'])}, of epoch {savepoint['epoch']:,}"
                console.print(
                    escape(f"{plain(one['name'])}: savepoint {of}, was {done} {_time(savepoint['at'])}"),
                    highlight=False,
                )
        if (error := one["error"] or one["store_error"]) is not None:
            said = f"{plain(one['name'])}: {plain(error['message'], SAID_MAX)} [{error['code']}]"
            console.print(escape(said))


def print_epochs(found: Sequence[dict[str, Any]]) -> None:
    table = _table("epoch", "state", "generation", "opened", "took", "rows", "bytes", "acknowledged by")
    for one in found:
        acknowledged = [sink["name"] for sink in one["sinks"] if sink["state"] == "acknowledged"]
        took_s = one["duration_s"]
        table.add_row(
            str(one["epoch"]),
            _coloured(one["state"]),
            str(one["generation"]),
            _time(one["opened_at"]),
            "" if took_s is None else f"{took_s:.1f} s",
            _number(one["rows"]),
            _number(one["bytes"]),
            escape(plain(", ".join(acknowledged))),
        )
    table_console().print(table if found else "no epochs yet")


def _table(*columns: str) -> Table:
    return Table(*columns, box=None, pad_edge=False)


def _coloured(state: str) -> str:
    colour = _COLOURS.get(state)
    return escape(state) if colour is None else f"[{colour}]{escape(state)}[/]"


def _number(value: int | None) -> str:
    return _UNKNOWN if value is None else f"{value:,}"


def _time(text: str | None) -> str:
    return "" if text is None else datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")
