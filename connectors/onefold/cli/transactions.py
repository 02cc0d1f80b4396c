"""What `onefold txn list | resolve` do, from a database to their tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from onefold.cli.shown import shown
from onefold.cli.tables import COLOURS, table_console
from onefold.core import ConfigError, OnefoldError
from onefold.core.protocol.in_doubt import Fate
from onefold.operate.databases import LedgerDatabase
from onefold.operate.open_transactions import ListedTransaction, as_dict, open_of, print_open
from onefold.operate.transactions import Verdict
from onefold.pipeline import Pipeline
from onefold.sinks.postgres.admin import PreparedTransaction

__all__ = ["list_transactions", "resolve_transactions"]


def list_transactions(databases: Sequence[LedgerDatabase], described: Pipeline | None, as_json: bool) -> None:
    """Raises the error of a Kafka sink that could not be asked once the databases' transactions are shown."""
    found, others = _look(databases)
    ours = [verdict for _, verdict in found]
    try:
        opened = open_of(described) if described is not None else []
    except OnefoldError:
        if databases:
            _show(databases, ours, others, [], as_json)
        raise
    _show(databases, ours, others, opened, as_json)


def _show(
    databases: Sequence[LedgerDatabase],
    ours: Sequence[Verdict],
    others: Sequence[PreparedTransaction],
    opened: Sequence[ListedTransaction],
    as_json: bool,
) -> None:
    if as_json:
        shown = [*map(_as_dict, ours), *(as_dict(one) for one in opened)]
        json.dump({"ours": shown, "others": [_foreign(t) for t in others]}, sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    if databases:
        _print(ours, others)
    if opened or not databases:
        print_open(opened)


def resolve_transactions(databases: Sequence[LedgerDatabase], gid: str | None, take_over: bool, yes: bool) -> bool:
    """Shows, asks, resolves, and shows what had to be left; False if anything had to be."""
    if take_over and (gid is not None or any(database.pipeline is None for database in databases)):
        raise ConfigError("options-conflict", "--take-over is for one whole pipeline: name it, and no --gid")
    found, others = _look(databases)
    if gid is not None:
        found = [_one(gid, found, others)]
    parts = [(database, [one for at, one in found if at == database]) for database in databases]
    are_done = [_resolve(at, mine, gid, take_over, yes) for at, mine in parts if mine or gid is None]
    return all(are_done)


def _resolve(database: LedgerDatabase, found: list[Verdict], gid: str | None, take_over: bool, yes: bool) -> bool:
    pipeline = database.pipeline if gid is None else found[0].transaction.pipeline
    console = Console(soft_wrap=True)
    _print(found, [])
    names = [pipeline] if pipeline else sorted(_resolvable(found))
    doing = "Take over, and fence the driver of," if take_over else "Commit and roll back, as shown, for"
    if not names or not (yes or typer.confirm(f"{doing} {', '.join(names)}?", abort=True)):
        return not found
    looked_at = {verdict.transaction.name for verdict in found}
    with database.transactions() as transactions:
        for name in names:
            if take_over:
                started = transactions.take_over(name)
                console.print(
                    f"{shown(name)}: taken over as generation {started.generation.number}; {started.finished} decided"
                    f" epochs finished, {started.given_up} given up"
                )
            fates = list(transactions.resolve(name, gid).values())
            if fates or not take_over:
                counts = f"{fates.count(Fate.COMMIT)} committed, {fates.count(Fate.ROLL_BACK)} rolled back"
                console.print(f"{shown(name)}: {counts}")
        still = [v for v in transactions.look(pipeline)[0] if v.transaction.is_here or v.transaction.name in looked_at]
    left = [verdict for verdict in still if gid in (None, verdict.transaction.name)]
    if left:
        console.print(f"{len(left)} left:")
        _print(left, [])
    return not left


def _look(
    databases: Sequence[LedgerDatabase],
) -> tuple[list[tuple[LedgerDatabase, Verdict]], list[PreparedTransaction]]:
    """Each transaction once, the oldest first: every database of a server lists it, and its own one knows it."""
    ours: dict[str, tuple[LedgerDatabase, Verdict]] = {}
    others: dict[tuple[str, datetime], PreparedTransaction] = {}
    for database in databases:
        with database.transactions() as transactions:
            verdicts, foreign = transactions.look(database.pipeline)
        for verdict in verdicts:
            if verdict.fate is not Fate.UNKNOWN or verdict.transaction.name not in ours:
                ours[verdict.transaction.name] = database, verdict
        others |= {(each.name, each.prepared_at): each for each in foreign}
    return (
        sorted(ours.values(), key=lambda each: each[1].transaction.prepared_at),
        sorted(others.values(), key=lambda each: each.prepared_at),
    )


def _one(
    gid: str, ours: Sequence[tuple[LedgerDatabase, Verdict]], others: Sequence[PreparedTransaction]
) -> tuple[LedgerDatabase, Verdict]:
    if any(t.name == gid for t in others):
        raise ConfigError(
            "transaction-not-ours",
            f"{gid!r} was not prepared by onefold: what should become of it is for its owner to say",
        )
    found = next((each for each in ours if each[1].transaction.name == gid), None)
    if found is None:
        raise ConfigError(
            "transaction-missing",
            f"there is no prepared transaction {gid!r}: it was finished meanwhile, or never was one",
        )
    if found[1].fate is Fate.UNKNOWN:
        raise ConfigError("transaction-undecidable", f"{gid!r} was left as it is: {found[1].because}")
    return found


def _resolvable(found: list[Verdict]) -> set[str]:
    names = {v.transaction.pipeline for v in found if v.fate in (Fate.COMMIT, Fate.ROLL_BACK)}
    return {name for name in names if name is not None}


def _print(ours: Sequence[Verdict], others: Sequence[PreparedTransaction]) -> None:
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
            table.add_row(fate, shown(t.pipeline or "?"), shown(t.sink or "?"), *numbers, *map(shown, texts))
        console.print(table)
    else:
        console.print("no prepared transactions of onefold")
    if others:
        oldest = others[0]
        console.print(
            f"{len(others)} of other people, which onefold leaves alone; the oldest is {shown(repr(oldest.name))} of"
            f" {shown(oldest.owner)} in database {shown(oldest.database)}, {timedelta(seconds=int(oldest.age_s))} old"
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


def _foreign(transaction: PreparedTransaction) -> dict[str, Any]:
    return {
        "gid": transaction.name,
        "owner": transaction.owner,
        "database": transaction.database,
        "prepared_at": transaction.prepared_at.isoformat(),
        "age_s": round(transaction.age_s, 3),
    }
