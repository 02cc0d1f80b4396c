"""What `onefold txn list | resolve` do, from their options to their tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from onefold.cli.txn.transactions import Transactions, Verdict
from onefold.core import ConfigError
from onefold.core.protocol.in_doubt import Fate
from onefold.sinks.postgres.admin import Operations, Prepared

__all__ = ["COLOURS", "list_transactions", "resolve_transactions", "table_console"]

_PIPE_COLUMNS = 400  # one line for each transaction, for those who read it by program
COLOURS = {Fate.COMMIT: "green", Fate.ROLL_BACK: "yellow", Fate.LEAVE: "default", Fate.UNKNOWN: "red"}


def list_transactions(postgres: str, schema: str, store: str | None, pipeline: str | None, as_json: bool) -> None:
    with _transactions(postgres, store, schema) as transactions:
        ours, others = transactions.look(pipeline)
    if as_json:
        json.dump({"ours": [_as_dict(v) for v in ours], "others": [_foreign(t) for t in others]}, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        _print(ours, others)


def resolve_transactions(
    postgres: str, schema: str, store: str | None, pipeline: str | None, gid: str | None, take_over: bool, yes: bool
) -> bool:
    """Shows, asks, resolves, and shows what had to be left; False if anything had to be."""
    if take_over and (pipeline is None or gid is not None):
        raise ConfigError(
            "options-conflict", "--take-over is for one whole pipeline: name it with --pipeline, and no --gid"
        )
    console = Console(soft_wrap=True)
    with _transactions(postgres, store, schema) as transactions:
        found, others = transactions.look(pipeline)
        if gid is not None:
            found = [_one(gid, found, others)]
            pipeline = found[0].transaction.pipeline
        _print(found, [])
        names = [pipeline] if pipeline else sorted(_resolvable(found))
        doing = "Take over, and fence the driver of," if take_over else "Commit and roll back, as shown, for"
        if not names or not (yes or typer.confirm(f"{doing} {', '.join(names)}?", abort=True)):
            return not found
        for name in names:
            if take_over:
                started = transactions.take_over(name)
                console.print(
                    f"{escape(name)}: taken over as generation {started.generation.number}; {started.finished} decided"
                    f" epochs finished, {started.given_up} given up"
                )
            fates = list(transactions.resolve(name, gid).values())
            if fates or not take_over:
                counts = f"{fates.count(Fate.COMMIT)} committed, {fates.count(Fate.ROLL_BACK)} rolled back"
                console.print(f"{escape(name)}: {counts}")
        left = [v for v in transactions.look(pipeline)[0] if gid in (None, v.transaction.name)]
    if left:
        console.print(f"{len(left)} left:")
        _print(left, [])
    return not left


def table_console() -> Console:
    """As wide as the terminal, and as the text where there is none."""
    return Console(width=None if sys.stdout.isatty() else _PIPE_COLUMNS)


def _one(gid: str, ours: list[Verdict], others: list[Prepared]) -> Verdict:
    if any(t.name == gid for t in others):
        raise ConfigError(
            "transaction-not-ours",
            f"{gid!r} was not prepared by onefold: what should become of it is for its owner to say",
        )
    verdict = next((v for v in ours if v.transaction.name == gid), None)
    if verdict is None:
        raise ConfigError(
            "transaction-missing",
            f"there is no prepared transaction {gid!r}: it was finished meanwhile, or never was one",
        )
    if verdict.fate is Fate.UNKNOWN:
        raise ConfigError("transaction-undecidable", f"{gid!r} was left as it is: {verdict.because}")
    return verdict


def _resolvable(found: list[Verdict]) -> set[str]:
    names = {v.transaction.pipeline for v in found if v.fate in (Fate.COMMIT, Fate.ROLL_BACK)}
    return {name for name in names if name is not None}


@contextmanager
def _transactions(postgres: str, store: str | None, schema: str) -> Iterator[Transactions]:
    transactions = Transactions(Operations(postgres, schema), store)
    try:
        yield transactions
    finally:
        transactions.close()


def _print(ours: list[Verdict], others: list[Prepared]) -> None:
    console = table_console()
    if ours:
        table = Table(
            "should become", "pipeline", "sink", "generation", "epoch", "age", "owner", box=None, pad_edge=False
        )
        table.add_column("transaction", overflow="fold")
        table.add_column("because", overflow="fold")
        for verdict in ours:
            t, gid = verdict.transaction, verdict.transaction.gid
            assert gid is not None, t
            fate = f"[{COLOURS[verdict.fate]}]{verdict.fate.value}[/]"
            numbers = (str(gid.generation), str(gid.epoch), str(timedelta(seconds=int(t.age_s))))
            texts = (t.owner, t.name, verdict.because)
            table.add_row(fate, escape(t.pipeline or "?"), escape(t.sink or "?"), *numbers, *map(escape, texts))
        console.print(table)
    else:
        console.print("no prepared transactions of onefold")
    if others:
        oldest = others[0]
        console.print(
            f"{len(others)} of other people, which onefold leaves alone; the oldest is {escape(repr(oldest.name))} of"
            f" {escape(oldest.owner)} in database {escape(oldest.database)}, {timedelta(seconds=int(oldest.age_s))} old"
        )


def _as_dict(verdict: Verdict) -> dict[str, Any]:
    transaction, gid = verdict.transaction, verdict.transaction.gid
    assert gid is not None, transaction
    return {
        **_foreign(transaction),
        "pipeline": transaction.pipeline,
        "sink": transaction.sink,
        "generation": gid.generation,
        "epoch": gid.epoch,
        "should_become": verdict.fate.value,
        "because": verdict.because,
    }


def _foreign(transaction: Prepared) -> dict[str, Any]:
    return {
        "gid": transaction.name,
        "owner": transaction.owner,
        "database": transaction.database,
        "prepared_at": transaction.prepared_at.isoformat(),
        "age_s": round(transaction.age_s, 3),
    }
