"""What an HBase sink's ledger says of the sink: with what it was, another one is refused, and a newer one is not."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.clients.hbase import ColumnFamily, HBaseSettings, table_admin
from onefold.core import ConfigError, EpochRecord, EpochState, Positions, Range, WriteThrough
from onefold.sinks import HBaseSink

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("hbase")]

Setup = tuple[dict[str, Any], dict[str, pa.DataType]]  # settings, and the rows' columns
Run = Callable[..., None]
SHORT, LONG, DOUBLE, TEXT = pa.int32(), pa.int64(), pa.float64(), pa.string()
KN = {"k": TEXT, "n": LONG}
KIN = {"k": TEXT, "id": LONG, "n": LONG}


def rolling(columns: dict[str, str] | None = None, **merge: str) -> dict[str, Any]:
    return {"mode": "rolling", "merge": merge, "columns": columns}


def by_id(merge: dict[str, str] | str, id: str = "id") -> dict[str, Any]:
    return {"mode": "incremental", "merge": merge, "sequence": id}


@pytest.fixture(scope="module")
def table(hbase_server: Any) -> str:
    """Of all sinks: no rows are written, only ledgers."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    table_admin.ensure(HBaseSettings(hbase_server.servers), name, [ColumnFamily(b"f"), ColumnFamily(b"g")])
    return name


@pytest.fixture
def run(hbase_server: Any, table: str) -> Run:
    """One setup after the other as the same sink, each with an epoch of its own."""

    def run(*setups: Setup) -> None:
        always = {"name": uuid.uuid4().hex, "row_key": "k", "family": "f"}
        span = Range(Positions(), Positions.of({"t/0": 1}))
        for epoch, (settings, kinds) in enumerate(setups, 1):
            sink = HBaseSink(hbase_server.servers, table, **always | settings)
            committer = sink.open("p", pa.schema(list(kinds.items())))
            assert isinstance(committer, WriteThrough)
            committer.announce(EpochRecord("p", epoch, epoch, EpochState.OPEN, span, epoch * 1000, "q", 0, "job"))
            assert sink.recover("p").ledger() is not None  # who only finishes what was begun knows no columns

    return run


MARKED = {"delete_when_true": "gone"}
REAL = {"delete_when_true": "gone", "delete_mode": "real"}
GONE = {**KN, "gone": pa.bool_()}
REFUSED: dict[str, tuple[Setup, Setup, str]] = {
    "type": ((rolling(n="sum"), KN), (rolling(n="sum"), KN | {"n": DOUBLE}), "cell f:n 'integer'"),
    "cell": ((rolling(n="sum"), KN), (rolling({"n": "g:n"}, n="sum"), KN), "column n 'f:n'"),
    "name and type": (
        (rolling(n="sum"), KN),
        (rolling({"m": "f:n"}, m="sum"), {"k": TEXT, "m": DOUBLE}),
        "cell f:n 'integer'",
    ),
    "scale": (
        (rolling(n="max"), KN | {"n": pa.decimal128(9, 2)}),
        (rolling(n="max"), KN | {"n": pa.decimal128(9, 3)}),
        "cell f:n 'decimal of 2 places'",
    ),
    "key's type": (({}, KN | {"k": LONG}), ({}, KN), "row key's k 'integer'"),
    "id's type": ((by_id("replace"), KIN), (by_id("replace"), KIN | {"id": TEXT}), "sequence's values 'integer'"),
    "id's name": ((by_id("replace"), KIN), (by_id("replace", "n"), KIN), "sequence 'id'"),
    "replaced, then merged": ((by_id("replace"), KIN), (by_id({"n": "sum"}), KIN | {"n": DOUBLE}), "merge 'replace'"),
    "mark left out": ((MARKED, GONE), ({}, KN), "tombstone_column 'f:_deleted'"),
    "mark's cell": ((MARKED, GONE), (MARKED | {"tombstone_column": "g:gone"}, GONE), "tombstone_column 'f:_deleted'"),
    "real deletes": (
        (MARKED, GONE),
        (REAL, GONE),
        "tombstone_column 'f:_deleted' before, and is now set up with no tombstone_column",
    ),
}


@pytest.mark.parametrize("change", REFUSED)
def test_what_would_read_something_else_in_what_was_written_is_refused(run: Run, change: str) -> None:
    """The bytes of an integer are a number as a double too: sums would go on from that one, in silence."""
    was, now, told = REFUSED[change]
    with raises(ConfigError, "sink-mode-changed", f"{told}"):
        run(was, now)


def test_types_and_names_that_change_nothing_of_what_was_written_may_change(run: Run) -> None:
    """Integers become longs, decimals wider, columns others in the same cells."""
    run((rolling(n="max"), {"k": SHORT, "n": SHORT}), (rolling(n="max"), {"k": LONG, "n": LONG}))
    run((rolling(n="sum"), KN | {"n": pa.decimal128(9, 2)}), (rolling(n="sum"), KN | {"n": pa.decimal128(18, 2)}))
    run((by_id({"n": "union"}), KIN | {"id": SHORT, "n": SHORT}), (by_id({"n": "union"}), KIN))
    run((rolling(n="sum"), KN), (rolling({"m": "f:n"}, m="sum"), {"k": TEXT, "m": LONG}))
    run((by_id("replace"), KIN), (by_id("replace"), KIN | {"n": TEXT}))
    run(({}, KN), ({}, KN | {"n": TEXT}), (MARKED, GONE))
    run((REAL, GONE), (MARKED, GONE))


def test_columns_may_come_and_go_and_what_they_were_is_not_forgotten(run: Run) -> None:
    two = (rolling(n="sum", m="sum"), KN | {"m": LONG})
    other = (rolling(n="sum", o="sum"), KN | {"o": DOUBLE})
    run(two, (rolling(n="sum"), KN), other, two)
    with raises(ConfigError, "sink-mode-changed", "'integer'"):
        run(two, (rolling(n="sum"), KN), other, (rolling(n="sum", m="sum"), KN | {"m": DOUBLE}))
