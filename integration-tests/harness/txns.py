"""What the tests of `onefold txn` share: drivers that die at a named moment, and what the command says of them."""

from __future__ import annotations

import pytest
from harness.pipeline_drivers import MakeWorld, World
from harness.support import CrashError, crash, failing_at
from typer.testing import CliRunner, Result

from onefold.cli.main import app
from onefold.operate.transactions import Transactions

__all__ = ["died", "dies_at", "fates", "onefold", "onefold_raises"]


def fates(transactions: Transactions) -> dict[str, str]:
    return {v.transaction.name: v.fate.value for v in transactions.look()[0]}


def dies_at(monkeypatch: pytest.MonkeyPatch, world: World, place: str, batch: int) -> None:
    with monkeypatch.context() as patched:
        failing_at(patched, place, crash)
        with pytest.raises(CrashError):
            world.epoch(batch)


def died(
    make: MakeWorld, monkeypatch: pytest.MonkeyPatch, place: str, *sinks: str, complete: int = 0, **more: str
) -> World:
    """A pipeline whose driver died there, in the epoch after `complete` whole ones."""
    world = make(*sinks, **more)
    world.start()
    for batch in range(complete):
        world.epoch(batch)
    dies_at(monkeypatch, world, place, complete)
    return world


def onefold(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["txn", *arguments])


def onefold_raises(*arguments: str) -> None:
    CliRunner().invoke(app, ["txn", *arguments], catch_exceptions=False)
