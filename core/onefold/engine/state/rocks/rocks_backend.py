"""The RocksDB backend: for states that are larger than memory.

Changes go into dicts first, as in the memory backend; `freeze` takes them away, whatever the size of the state. Storing
a snapshot puts them into RocksDB, which nothing else writes to meanwhile, so that its checkpoint is the state at that
barrier. Of the checkpoint's SST files those are stored that no earlier snapshot has: RocksDB never changes one. The
rest of it (its MANIFEST and options) is in the snapshot's own file, and so are new SST files, again in each snapshot,
until they have some size together: so a small epoch writes and syncs one file. Which files are still needed is counted
from the snapshots that are kept, by the participant `state`.

A read looks into the newest changes first, then into those that are being stored, then into RocksDB.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import pyarrow as pa

from onefold.core.checks import require
from onefold.core.extras import naming_extras
from onefold.core.failpoints import failpoint
from onefold.engine.key_groups import MAX_PARALLELISM
from onefold.engine.state.codec import unreadable
from onefold.engine.state.columns.keyed_rows import KeyedRows
from onefold.engine.state.common import BaseBackend, Delta, OneFrozen, list_parts
from onefold.engine.state.rocks.rocks_blocks import RocksBlocks
from onefold.engine.state.rocks.scratch import Naming
from onefold.engine.state.rocks.table import RocksTable
from onefold.engine.state.snapshot import (
    FILE,
    Draft,
    Footer,
    Piece,
    Wanted,
    new_name,
    read_part,
    read_piece,
    write_snapshot,
)
from onefold.engine.state.state_backend import (
    NO_MIGRATIONS,
    BlockTable,
    Frozen,
    Migrations,
    StateKind,
    StateSize,
    StateSpec,
    StateTable,
    WholeRowTable,
)
from onefold.engine.state.storage import Storage

with naming_extras():
    from rocksdict import Checkpoint, Options, Rdict, WriteBatch, WriteOptions

CHANGES_MAX = 200_000  # entries in dicts, before they go into RocksDB without waiting for a barrier
WITHIN_BYTES_MAX = 64 << 10  # of new SST files together, in the snapshot's own file
_SST = ".sst"
_SETTINGS = "rocksdict-config.json"  # says that values are to be unpickled, if it likes; snapshots of before have it
_BATCH_BYTES = 4 << 20


class RocksBackend(BaseBackend):
    """Implements StateBackend. The database is in a folder of its own in `folder`, by default that for temporary files,
    while it is open; it need not outlive the process."""

    name = "rocksdb"

    def __init__(
        self,
        storage: Storage,
        generation: int,
        max_parallelism: int = MAX_PARALLELISM,
        *,
        folder: str | None = None,
        changes_max: int = CHANGES_MAX,
        within_bytes_max: int = WITHIN_BYTES_MAX,
    ) -> None:
        super().__init__(storage, generation, max_parallelism)
        self._changes_max = changes_max
        self._within_bytes_max = within_bytes_max
        self._naming = Naming(Path(folder or tempfile.gettempdir()))
        with self._naming:
            self._home = Path(tempfile.mkdtemp(dir=folder))
        self._tables: dict[StateSpec, RocksTable | RocksBlocks] = {}
        self._stored: dict[str, Piece] = {}  # the SST files that have a file of their own, by their names here
        self._bytes = 0  # of all SST files of the last snapshot
        self._db: Rdict | None = None
        self._number = 0  # of folders in `home`

    def restore(
        self, handles: Sequence[str], key_groups: Collection[int], migrations: Migrations = NO_MIGRATIONS
    ) -> None:
        require(self._db is None, "restore comes before any table is used")
        found = self._begin(handles, key_groups, migrations)
        mine = [pair for pair in found if pair[0].first < self._groups.stop and pair[0].end > self._groups.start]
        is_one = len(mine) == 1 and (mine[0][0].first, mine[0][0].end) == (self._groups.start, self._groups.stop)
        if is_one and not migrations:
            with self._naming:
                folder = self._fetched(*mine[0])
                self._bytes = sum(path.stat().st_size for path in folder.glob(f"*{_SST}"))
                self._db = self._open(folder)
            self._stored = {_local(piece.name): piece for piece in mine[0][0].pieces}
            return
        for footer, own in mine:
            with self._naming:
                self._take_over(self._fetched(footer, own), footer, migrations)

    def table(self, spec: StateSpec) -> StateTable:
        table = self._table(spec)
        assert isinstance(table, RocksTable)
        return table

    def blocks(self, uid: str, name: str, schema: pa.Schema, width: int) -> BlockTable:
        table = self._table(StateSpec(uid, name, StateKind.BLOCKS))
        assert isinstance(table, RocksBlocks)
        table.opened(schema, width)
        return table

    def rows(self, uid: str, name: str, schema: pa.Schema, width: int) -> WholeRowTable:
        """A key is looked up by itself: so the state may be larger than memory."""
        return KeyedRows(self.table(StateSpec(uid, name, StateKind.ROWS)), schema, width)

    def freeze(self, epoch: int) -> Frozen:
        taken = {spec: changes for spec, table in self._tables.items() if (changes := table.take())}
        delta = _Delta(epoch, self._lists(), taken)
        self._unstored.append(delta)
        return OneFrozen(self, delta)

    def specs(self) -> list[StateSpec]:
        stored = [] if self._db is None else _families(Path(self._db.path()))
        return [*dict.fromkeys([*map(_spec, stored), *self._tables])]

    def size(self) -> StateSize:
        return StateSize(sum(table.estimated_entries for table in self._tables.values()), self._bytes)

    def close(self) -> None:
        with self._storing:
            for table in self._tables.values():
                table.close()
            if self._db is not None:
                with suppress(Exception):  # what it could not write is in no snapshot
                    self._db.close()
                self._db = None
            shutil.rmtree(self._home, ignore_errors=True)

    def _table(self, spec: StateSpec) -> RocksTable | RocksBlocks:
        if spec not in self._tables:
            family = _family(spec)
            with self._naming:
                db = self._database()
                try:
                    part = db.get_column_family(family)
                except Exception:  # rocksdict has no type of its own for it
                    part = db.create_column_family(family, _options())
                part.set_write_options(_unlogged())
            if spec.kind is StateKind.BLOCKS:
                self._tables[spec] = RocksBlocks(part, self._naming)
            else:
                self._tables[spec] = RocksTable(
                    spec, part, self._max_parallelism, self._spill, self._changes_max, self._naming
                )
        return self._tables[spec]

    def _database(self) -> Rdict:
        if self._db is None:
            self._db = self._open(self._folder())
        return self._db

    def _spill(self, spec: StateSpec) -> None:
        """A long epoch's changes go into RocksDB early, unless a snapshot is due that must not have them."""
        if not self._unstored:
            table = self._tables[spec]
            self._write(spec, table.take())
            table.drop_taken()

    # storing

    def _store(self, deltas: Sequence[Any], epoch: int) -> str:
        for delta in deltas:
            for spec, changes in delta.changes.items():
                self._write(spec, changes)
        folder = self._folder()
        with self._naming:
            Checkpoint(self._database()).create_checkpoint(str(folder))
        name = new_name(self._generation, epoch)
        files = sorted(path for path in folder.iterdir() if path.is_file())
        tables = {path.name: path for path in files if path.suffix == _SST}
        kept = {file: self._stored[file] for file in tables if file in self._stored}
        sizes = {file: path.stat().st_size for file, path in tables.items()}
        unstored = [path for file, path in tables.items() if file not in kept]
        others = [path for path in files if path.suffix != _SST and path.name != _SETTINGS]
        if sum(sizes[path.name] for path in unstored) <= self._within_bytes_max:
            others, unstored = [*others, *unstored], []
        failpoint("before:StoreState")
        try:
            new = {path.name: self._upload(name, path) for path in unstored}
            footer = self._footer(epoch, (kept | new).values())
            write_snapshot(self._storage, name, footer, self._drafts(others, deltas[-1]))
        except BaseException:
            self._storage.remove(f"{name}.{file}" for file in tables)
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        failpoint("after:StoreState")
        self._stored, self._bytes = kept | new, sum(sizes.values())
        for delta in deltas:
            for spec in delta.changes:
                self._tables[spec].drop_taken()
        return name

    def _upload(self, name: str, path: Path) -> Piece:
        content = path.read_bytes()
        remote = f"{name}.{path.name}"
        self._storage.write(remote, [content])
        return Piece(remote, len(content), zlib.crc32(content), self._groups.start, self._groups.stop)

    @staticmethod
    def _drafts(others: Sequence[Path], delta: Delta) -> Iterator[Draft]:
        for path in others:
            yield StateSpec("", path.name, StateKind.OPERATOR), FILE, 0, path.read_bytes()
        yield from list_parts(delta.lists)

    def _write(self, spec: StateSpec, changes: Any) -> None:
        with self._naming:
            _write(self._database(), _family(spec), self._tables[spec].encoded(changes))

    # restoring

    def _fetched(self, footer: Footer, own: Piece) -> Path:
        """The checkpoint in a folder of its own, every file as it was."""
        folder = self._folder()
        folder.mkdir()
        for part in footer.parts:
            if part.what == FILE and part.name != _SETTINGS:
                (folder / part.name).write_bytes(read_part(self._storage, own.name, part))
        for piece in footer.pieces:
            (folder / _local(piece.name)).write_bytes(read_piece(self._storage, piece))
        return folder

    def _take_over(self, folder: Path, footer: Footer, migrations: Migrations) -> None:
        """The entries of my key groups from another database."""
        first, end = max(footer.first, self._groups.start), min(footer.end, self._groups.stop)
        other, families = self._open(folder), _families(folder)
        for family in families:
            migration = migrations.get(_spec(family))
            target = _spec(family) if migration is None else migration.target
            if target is None:
                continue
            mine = self._table(target)
            if isinstance(mine, RocksBlocks):
                wanted = Wanted(range(first, end), self._max_parallelism)
                entries = mine.adopted(other.get_column_family(family), wanted, migration)
            else:
                entries = _between(other, family, first, end)
                entries = entries if migration is None else mine.migrated(entries, migration)
            _write(self._database(), _family(target), entries)
        other.close()
        del other  # it is closed once nothing refers to it
        shutil.rmtree(folder, ignore_errors=True)

    def _open(self, folder: Path) -> Rdict:
        families: Mapping[str, Options] = {name: _options() for name in _families(folder)}
        return Rdict(str(folder), _options(), column_families=dict(families))

    def _folder(self) -> Path:
        self._number += 1
        return self._home / str(self._number)


@dataclass(slots=True, eq=False)
class _Delta(Delta):
    changes: dict[StateSpec, Any]


def _write(db: Rdict, family: str, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
    """None for a value says that it is gone."""
    handle = db.get_column_family_handle(family)
    batch = WriteBatch(raw_mode=True)
    for key, value in entries:
        if value is None:
            batch.delete(key, handle)
        else:
            batch.put(key, value, handle)
        if batch.size_in_bytes() > _BATCH_BYTES:
            db.write(batch, _unlogged())
            batch = WriteBatch(raw_mode=True)
    db.write(batch, _unlogged())


def _between(db: Rdict, family: str, first: int, end: int) -> Iterator[tuple[bytes, bytes]]:
    """Of the key groups from `first` up to, not including, `end`."""
    entries: Any = db.get_column_family(family).items(from_key=first.to_bytes(2, "big"))
    return takewhile(lambda entry: entry[0] < end.to_bytes(2, "big"), entries)


def _local(name: str) -> str:
    """An SST file's own name in the database: `3/17-<uuid>.000012.sst` was `000012.sst`."""
    return name.rpartition("/")[2].partition(".")[2]


def _families(folder: Path) -> list[str]:
    return [name for name in Rdict.list_cf(str(folder), _options()) if name != "default"] if folder.exists() else []


def _family(spec: StateSpec) -> str:
    return json.dumps([spec.uid, spec.name, spec.kind.value])


def _spec(family: str) -> StateSpec:
    try:
        uid, name, kind = json.loads(family)
        return StateSpec(uid, name, StateKind(kind))
    except (ValueError, TypeError) as error:
        raise unreadable() from error


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    return options


def _unlogged() -> Any:
    """The snapshots are the log: RocksDB needs none of its own."""
    options: Any = WriteOptions()  # whose stub has this property as a method
    options.disable_wal = True
    return options
