"""Savepoints that are made of tables: a flow begins with what somebody else has counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness.definitions import named
from harness.errors import raises
from harness.ids_flow import Ids, killed_at
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.core import CheckpointMismatch, ConfigError
from onefold.operate.savepoint.flow_new import SavepointBuilder

pytestmark = pytest.mark.servers


def command(*arguments: str) -> str:
    ran = CliRunner().invoke(app, ["savepoint", *arguments], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.output


COUNTED = range(100)  # by somebody else


def of_key(k: int) -> list[int]:
    return [id for id in COUNTED if id % 7 == k]


def totals(**other: Any) -> pa.Table:
    """The state of the flow's aggregates after these ids."""
    highest = [[max(id for id in of_key(k) if id % 2 == parity) for parity in range(2)] for k in range(7)]
    columns = {
        "k": pa.array(range(7), pa.int64()),
        "n": pa.array([len(of_key(k)) for k in range(7)], pa.int64()),
        "total": pa.array([sum(of_key(k)) for k in range(7)], pa.int64()),
        "most": pa.array([len(of_key(k)) for k in range(7)], pa.int64()),
        "best": pa.array([sum(each) for each in highest], pa.int64()),
    }
    return pa.table({name: column for name, column in (columns | other).items() if column is not None})


def seen() -> pa.Table:
    rows = [(k, at, id) for k in range(7) for at, id in enumerate(of_key(k))]
    k, at, ids = map(list, zip(*rows, strict=True))
    notes = [f"n{id}" for id in ids]
    return pa.table({"key.k": k, "at": at, "value.id": ids, "value.note": notes})


def highest() -> pa.Table:
    rows = [(k, parity, max(id for id in of_key(k) if id % 2 == parity)) for k in range(7) for parity in range(2)]
    k, parity, ids = map(list, zip(*rows, strict=True))
    tags = [bytes([id]) for id in ids]
    parities = pa.array(parity, pa.int32())
    return pa.table({"key.k": k, "map.parity": parities, "value.id": ids, "value.tag": tags})


@pytest.fixture
def ids(tmp_path: Path, postgres_url: str) -> Ids:
    return Ids(tmp_path, postgres_url)


def test_a_flow_begins_with_state_of_tables_and_its_totals_are_exact(ids: Ids, tmp_path: Path) -> None:
    states = []
    for of, table in (("n/aggregates", totals()), ("last/seen", seen()), ("last/highest", highest())):
        pq.write_table(table, file := tmp_path / f"{of.replace('/', '-')}.parquet")
        states += ["--state", f"{of}={file}"]
    assert "epoch 1" in command("new", named(ids.pipeline), "--name", "first", *states)
    assert "whole" in command("list", named(ids.pipeline))
    assert "becomes the begin" in command("restore", named(ids.pipeline), "first", "--yes")
    ids.sent = [*COUNTED]
    ids.put(range(100, 150))
    ids.run(ids.made())
    command("create", named(ids.pipeline), "--name", "later")
    command("restore", named(ids.pipeline), "later", "--yes")
    ids.put(range(150, 170))
    ids.run(ids.made(workers=2))
    with raises(CheckpointMismatch, "savepoint-elsewhere"):
        command("restore", named(ids.pipeline), "first", "--yes")


def test_a_table_that_somebody_s_query_gave_is_the_begin_of_an_aggregate(ids: Ids, tmp_path: Path) -> None:
    with psycopg.connect(ids.url) as db:
        rows = db.execute(
            "SELECT id % 7 AS k, count(*), sum(id)::bigint FROM generate_series(0, 99) id GROUP BY 1"
        ).fetchall()
    k, n, total = (pa.array(column, pa.int64()) for column in zip(*rows, strict=True))
    nothing = pa.nulls(7, pa.int64())
    table = pa.table({"k": k, "n": n, "total": total, "most": nothing, "best": nothing})
    place = tmp_path / "savepoints/ids/first"
    builder = SavepointBuilder(ids.pipeline).state("n", "aggregates", table)
    made = builder.write(str(place))
    with raises(ConfigError, "savepoint-exists"):
        builder.write(str(place))
    assert [file.sha256 for file in builder.write(f"{place}-again").files] == [file.sha256 for file in made.files]
    with raises(ConfigError, "savepoint-table", "n/aggregates is given twice"):
        builder.state("n", "aggregates", table)
    with raises(ConfigError, "savepoint-lacks-operator", "last of flow"):
        command("restore", named(ids.pipeline), "first", "--yes")
    command("restore", named(ids.pipeline), "first", "--allow-new", "last", "--yes")
    ids.sent = [*COUNTED]
    ids.put(range(100, 150))
    from harness.ending import run_until

    def is_exact() -> bool:
        of = {k: [id for id in range(150) if id % 7 == k] for k in range(7)}
        return [row[:3] for row in ids.rows()] == [(k, len(each), sum(each)) for k, each in of.items()]

    run_until(ids.made(), is_exact)
    assert is_exact()


@pytest.mark.parametrize("place", ["restore:begun", "before:Decide"])
def test_a_restore_of_one_that_was_killed_is_finished_by_the_same_command(ids: Ids, tmp_path: Path, place: str) -> None:
    builder = SavepointBuilder(ids.pipeline).state("n", "aggregates", totals())
    builder.state("last", "seen", seen()).state("last", "highest", highest()).write(f"{tmp_path}/savepoints/ids/first")
    killed_at(ids.root, place, "savepoint", "restore", ids.file(), "first", "--yes")
    command("restore", named(ids.pipeline), "first", "--yes", "--take-over")
    ids.sent = [*COUNTED]
    ids.put(range(100, 120))
    ids.run(ids.made())


def test_a_file_that_is_none_is_named_without_the_password_in_its_url(ids: Ids) -> None:
    with raises(ConfigError, "option-value", "n/aggregates=s4://there/t.parquet") as refused:
        command("new", named(ids.pipeline), "--name", "s", "--state", "n/aggregates=s4://me:secret@there/t.parquet")
    assert "secret" not in str(refused.value)


def test_a_last_epoch_whose_note_was_cut_is_not_left_out_unsaid(ids: Ids) -> None:
    ids.put(range(10))
    ids.run()
    ids.put(range(10, 20))
    ids.run()
    note = max(Path(ids.pipeline.checkpoint).rglob("epochs/*.json"), key=lambda each: int(each.stem))
    note.write_bytes(note.read_bytes()[:20])
    with raises(ConfigError, "checkpoint-epoch-missing", f"no whole note of epoch {note.stem}"):
        SavepointBuilder(ids.pipeline).of_checkpoint(ids.pipeline.checkpoint)


@pytest.mark.parametrize(
    ("of", "table", "because"),
    [
        ("n/aggregates", totals(total=None), "lacks total.sum"),
        ("n/aggregates", totals(more=pa.nulls(7)), "has more besides"),
        ("n/aggregates", totals(total=pa.array(range(7), pa.int32())), "has int32 in total.sum"),
        ("n/aggregates", totals(k=pa.array([*range(6), None])), "has nulls in k"),
        ("n/aggregates", totals(n=pa.array([*range(6), None])), "has nulls in n.count"),
        ("n/aggregates", totals(k=pa.array([*range(6), 5])), "more than one row of the same k"),
        ("n/aggregates", totals(**{"total.sum": pa.array(range(7))}), "names a column twice"),
        ("n/totals", totals(), "has no state 'totals'. Give it one of n/aggregates"),
        ("m/aggregates", totals(), "no operator 'm' with state. It has last, n"),
        ("last/seen", pa.concat_tables([seen(), seen()]), "more than one row of the same key.k, at"),
        ("last/$timers", seen(), "has no state '$timers'"),
    ],
)
def test_another_table_is_refused_before_anything_is_written(
    ids: Ids, tmp_path: Path, of: str, table: pa.Table, because: str
) -> None:
    pq.write_table(table, tmp_path / "table.parquet")
    with raises(ConfigError, "savepoint-table", because):
        command("new", named(ids.pipeline), "--name", "first", "--state", f"{of}={tmp_path}/table.parquet")
    assert not (tmp_path / "savepoints").exists()
