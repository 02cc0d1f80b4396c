"""Removes what HBase holds of one pipeline: its rows in the ledger's table, and the rows of tables on request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from onefold.clients.hbase import table_admin
from onefold.clients.hbase.client_settings import HBaseSettings
from onefold.clients.hbase.table import HBaseTable
from onefold.sinks.epoch_log import LedgerState, Unreadable
from onefold.sinks.hbase.epoch_log import SINK, STATE
from onefold.sinks.name_parts import part


@dataclass(frozen=True, slots=True)
class HBaseReset:
    """All sinks of the pipeline whose ledger is in one table. `tables` lose their rows, too."""

    hbase: HBaseSettings
    pipeline: str
    ledger: str
    tables: tuple[str, ...]

    @property
    def server(self) -> str:
        return self.hbase.servers

    def found(self) -> Iterator[str]:
        """What there is of it, each for a line of a plan. Changes nothing."""
        for key, state in self._noted():
            yield f"table {self.ledger}: the ledger row {key.decode(errors='replace')}, at epoch {state.epoch}"

    def targets(self) -> dict[str, str | None]:
        """Each table that is named with its line of a plan; None where there is no such table."""
        return {
            name: None if table_admin.describe(self.hbase, name) is None else f"table {name}: all of its rows"
            for name in self.tables
        }

    def generation(self) -> int | None:
        """The newest that the ledgers name; None where there is no ledger."""
        return max((state.generation for _, state in self._noted()), default=None)

    def remove(self) -> None:
        """The rows first: no start begins anew beside them."""
        for name in self.tables:
            table_admin.truncate(self.hbase, name)
        keys = [key for key, _ in self._noted()]
        if keys:
            HBaseTable(self.hbase, self.ledger).remove(pa.array(keys, pa.binary()), [STATE, SINK])

    def close(self) -> None:
        """Does nothing: connections belong to the process."""

    def _noted(self) -> Iterator[tuple[bytes, LedgerState]]:
        if table_admin.describe(self.hbase, self.ledger) is None:
            return
        start = f"{part(self.pipeline)}/".encode()
        stop = start[:-1] + bytes([start[-1] + 1])
        for rows in HBaseTable(self.hbase, self.ledger).scan(start, stop, [STATE, SINK]):
            for key, text in zip(rows.keys.to_pylist(), rows.values[0].to_pylist(), strict=True):
                yield key, _state(text)


def _state(text: bytes | None) -> LedgerState:
    """What a row says, be it nothing that a sink wrote."""
    try:
        return LedgerState() if text is None else LedgerState.from_json(text)
    except Unreadable:
        return LedgerState()
