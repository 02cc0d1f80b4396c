"""The ledger of an HBase sink: a row in the ledger's table, written by compare-and-set."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from onefold.clients.hbase.rows.cells import Cells
from onefold.clients.hbase.table import HBaseTable
from onefold.core.errors import CheckpointMismatch, ConfigError, InDoubt
from onefold.core.failpoints import failpoint
from onefold.sinks.epoch_log import LedgerState, Unreadable, parsed
from onefold.sinks.hbase.sink_plan import HBasePlan, HBaseSinkSettings
from onefold.sinks.name_parts import part

log = logging.getLogger("onefold.sinks.hbase")

LEDGER_FAMILY = b"l"
STATE, SINK = (LEDGER_FAMILY, b"state"), (LEDGER_FAMILY, b"sink")
_LAYOUT = "layout"
_TRIES_MAX = 5


class TableNotes:
    """The ledger's row of one sink of one pipeline. Any process may repeat any call.

    A write names the state that was read, and HBase writes only where that state is still there: so a request that
    lands late changes nothing. The row also has the sink's identity (its table, its mode) and, once it was opened
    (`plan`), the layout of what it writes.
    """

    def __init__(self, settings: HBaseSinkSettings, pipeline: str, plan: HBasePlan | None = None) -> None:
        self._settings = settings
        self._where = settings.where(pipeline)
        self._table = HBaseTable(settings.hbase, settings.ledger, repeats=False)  # the driver does
        self._key = _one(f"{part(pipeline)}/{part(settings.name)}".encode())
        self._identity = settings.identity()
        self._layout = plan.layout() if plan is not None else {}

    def read(self) -> LedgerState:
        """Raises ConfigError where the sink is not what it was, CheckpointMismatch where no sink wrote the row."""
        return self._state(self._read()[0])

    def others(self) -> Mapping[str, LedgerState]:
        found: dict[str, LedgerState] = {}
        for rows in self._table.scan(b"", b"", [STATE, SINK]):
            states, sinks = (column.to_pylist() for column in rows.values)
            for key, state, sink in zip(rows.keys.to_pylist(), states, sinks, strict=True):
                if sink is None or state is None or key == self._key[0].as_py():
                    continue
                try:
                    if _texts(sink).get("table") == self._settings.declared.table:
                        found[key.decode(errors="replace")] = LedgerState.from_json(state)
                except Unreadable as error:
                    log.warning("%s: the ledger row %r is none that a sink wrote: %s", self._where, key, error)
        return found

    def write(self, state: LedgerState, generation: int) -> LedgerState:
        """Write the state, and return what stands then. Raises what a conditional put raises, InDoubt among it."""
        for _ in range(_TRIES_MAX):
            text, known = self._read()
            there = self._state(text)
            whole = there.after(state, generation)
            if whole == there:
                return there
            new = Cells(*STATE, _one(whole.to_json()))
            is_now = {**self._identity, _LAYOUT: {**known, **self._layout}}
            who = Cells(*SINK, _one(json.dumps(is_now).encode()))
            expected = pa.array([text], pa.binary())
            is_written = self._table.put_if_equal(self._key, new, expected, [who])
            failpoint("hbase:noted")
            if is_written[0].as_py():
                return whole
        raise InDoubt(
            "ledger-write-contended",
            f"{self._where}, noting as generation {generation} in the table {self._settings.ledger!r}: others"
            f" have written the row {_TRIES_MAX} times meanwhile",
        )

    def close(self) -> None:
        """Does nothing: connections belong to the process."""

    def _state(self, text: bytes | None) -> LedgerState:
        try:
            return LedgerState() if text is None else LedgerState.from_json(text)
        except Unreadable as error:
            raise self._of_others(error) from None

    def _of_others(self, error: Unreadable) -> CheckpointMismatch:
        key = self._key[0].as_py().decode()
        return CheckpointMismatch(
            "ledger-unreadable",
            f"{self._where}: the row {key!r} of the table {self._settings.ledger!r} is none that a sink wrote"
            f" ({error}). Let nobody but the pipeline write to that table (docs/security.md); put back what the row"
            " said before, from a snapshot, and start again",
        )

    def _read(self) -> tuple[bytes | None, dict[str, str]]:
        """The state's text, and every layout that was noted. Raises ConfigError where this sink differs from them."""
        text, sink = self._table.get(self._key, [STATE, SINK])
        found: dict[str, Any] = dict(self._identity)
        if (said := sink[0].as_py()) is not None:
            try:
                found = _texts(said)
            except Unreadable as error:
                raise self._of_others(error) from None
        layout: dict[str, str] = found.pop(_LAYOUT, {})
        compared = [name for name, was in layout.items() if was and name in self._layout]
        known = found | {name: layout[name] for name in compared}
        mine = self._identity | {name: self._layout[name] for name in compared}
        if known != mine:
            was, now = _text(known, mine), _text(mine, known)
            raise ConfigError(
                "sink-mode-changed",
                f"{self._where} has written with {was} before, and is now set up with {now}: its ledger and its rows"
                " are of the former. Go back to that; or give the sink another name=, and a table where it has no rows"
                " yet",
            )
        return text[0].as_py(), layout


def _texts(said: bytes) -> dict[str, Any]:
    """The sink's own description in its row. Raises Unreadable."""
    found = parsed(said)
    if not isinstance(found, dict):
        raise Unreadable("it is not an object")
    for name, value in found.items():
        told = value if isinstance(value, dict) and name == _LAYOUT else {name: value}
        if not all(isinstance(text, str) for text in told.values()):
            raise Unreadable(f"its {name} is no text")
    return found


def _text(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """The entries of the first that the other lacks, or has with another value."""
    differing = [(name, value) for name, value in one.items() if other.get(name) != value]
    return ", ".join(f"{name} {value!r}" if value else f"no {name}" for name, value in differing) or "nothing else"


def _one(value: bytes) -> pa.BinaryArray:
    return pa.array([value], pa.binary())
