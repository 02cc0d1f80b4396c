"""A subtask's snapshot as a file: parts of states, then a footer that says which parts, and which earlier files count.

A snapshot is the entries of the earlier files in their order, then its own. Each file's footer has the checksums of its
parts, and a snapshot's footer those of the earlier files' footers: so one that is whole proves all that it names.

The handle of a snapshot is its name, `<generation>/<epoch>-<uuid>`: a sweep tells by it whose work it is. Files that
come with a snapshot beside its own have names that continue it: `3/17-<uuid>.000012.sst`. A flight is a file of the
same kind, `3/17-<uuid>.flight`, which stands alone. Checksums are no signatures:
whoever may write there chooses what a footer says, so no other name than these leaves `read_footer`.
"""

from __future__ import annotations

import json
import re
import struct
import uuid
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa

from onefold.core.errors import CheckpointMismatch, DataLoss
from onefold.core.values.checked import checked
from onefold.core.values.plain import plain
from onefold.engine.key_groups import MAX_PARALLELISM
from onefold.engine.state.state_backend import StateKind, StateSpec
from onefold.engine.state.storage import Storage

VERSION = 3
LOG, BASE, OPERATOR, FILE, IN_FLIGHT = "log", "base", "operator", "file", "flight"
_ENTRIES = (LOG, BASE, OPERATOR, IN_FLIGHT)
_TRAILER = struct.Struct(">II8s")
_MAGIC = b"onefoldS"
_TAIL_BYTES = 64 << 10
_NAME = re.compile(r"((\d{1,18})/(\d{1,18})-[0-9a-f]{32}(?:\.flight)?)(?:\.\d{1,18}\.sst)?", re.ASCII)
_OF_ROCKSDB = re.compile(
    r"CURRENT|IDENTITY|(?:MANIFEST|OPTIONS)-\d{1,18}|\d{1,18}\.(?:log|sst)|rocksdict-config\.json", re.ASCII
)
_WHAT_TO_DO = "Put the file back from a copy, or start from an earlier epoch that was kept (retain) or from a savepoint"


@dataclass(frozen=True, slots=True)
class Piece:
    """A file that a snapshot names. It counts for the key groups from `first` up to, not including, `end`; `crc` is
    of its footer, or, where it has none, of all of it."""

    name: str
    bytes: int
    crc: int
    first: int
    end: int

    def narrowed(self, first: int, end: int) -> Piece:
        return replace(self, first=max(first, self.first), end=min(end, self.end))


@dataclass(frozen=True, slots=True)
class Wanted:
    """Of a snapshot's file: which key groups count, of how many; `is_whole` where it has no others."""

    groups: range
    max_parallelism: int
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """Entries of one state, as an Arrow IPC stream at an offset of the file. Of a log they are changes, of a base all
    that some part of the state held; both are put in the order of the files. Or a file of RocksDB, by its name."""

    uid: str
    name: str
    kind: str
    what: str
    rows: int
    at: int
    bytes: int
    crc: int

    @property
    def spec(self) -> StateSpec:
        return StateSpec(self.uid, self.name, StateKind(self.kind))


@dataclass(frozen=True, slots=True)
class Footer:
    backend: str
    epoch: int
    first: int
    end: int
    max_parallelism: int
    pieces: tuple[Piece, ...] = ()  # the earlier files, the oldest first
    parts: tuple[SnapshotPart, ...] = field(default=())


Draft = tuple[StateSpec, str, int, pa.Buffer | bytes]  # spec, what, rows, stream


def new_name(generation: int, epoch: int) -> str:
    return f"{generation}/{epoch}-{uuid.uuid4().hex}"


def owner_of(name: str) -> tuple[str, int, int] | None:
    """The snapshot that a file came with, and its generation and epoch; None for a name of another kind."""
    found = _NAME.fullmatch(name)
    return None if found is None else (found[1], int(found[2]), int(found[3]))


def is_handle(name: str) -> bool:
    """Whether it is a snapshot's own name."""
    owner = owner_of(name)
    return owner is not None and owner[0] == name


def write_snapshot(storage: Storage, name: str, footer: Footer, drafts: Iterable[Draft]) -> Piece:
    """Write the file, durably; the footer's parts are those of the drafts."""
    written: list[Piece] = []

    def content() -> Iterator[pa.Buffer | bytes]:
        parts: list[SnapshotPart] = []
        at = 0
        for spec, what, rows, stream in drafts:
            size = len(stream)
            parts.append(SnapshotPart(spec.uid, spec.name, spec.kind.value, what, rows, at, size, zlib.crc32(stream)))
            at += size
            yield stream
        text = json.dumps({"version": VERSION, **asdict(replace(footer, parts=tuple(parts)))}).encode()
        crc = zlib.crc32(text)
        yield text
        yield _TRAILER.pack(crc, len(text), _MAGIC)
        written.append(Piece(name, at + len(text) + _TRAILER.size, crc, footer.first, footer.end))

    storage.write(name, content())
    return written[0]


def read_footer(storage: Storage, name: str, crc: int | None = None) -> tuple[Footer, Piece]:
    """The footer, and the file as a piece. Raises DataLoss where it is gone, cut or changed."""
    if not is_handle(name):
        raise DataLoss("state-file-damaged", f"{plain(repr(name))} is no snapshot's name. {_WHAT_TO_DO}")
    size = storage.sizes([name])[name]
    if size is None:
        raise _gone(storage, name)
    tail = _read(storage, name, -_TAIL_BYTES, None)
    if len(tail) < _TRAILER.size:
        raise _damaged(storage, name, "it is cut")
    found, length, magic = _TRAILER.unpack(tail[-_TRAILER.size :])
    if magic != _MAGIC or length + _TRAILER.size > size:
        raise _damaged(storage, name, "its end is missing or changed")
    if length + _TRAILER.size > len(tail):
        tail = _read(storage, name, -length - _TRAILER.size, None)
    text = tail[-length - _TRAILER.size : -_TRAILER.size]
    if zlib.crc32(text) != found or crc not in (None, found):
        raise _damaged(storage, name, "its footer has another checksum")
    try:
        values = dict(json.loads(text))
        version = values.pop("version")
        footer = _footer_of(values, size - len(text) - _TRAILER.size) if version == VERSION else None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _damaged(storage, name, "its footer is no snapshot's") from error
    if footer is None:
        raise CheckpointMismatch(
            "state-format-unknown",
            f"the snapshot {storage.path(name)} has the format {plain(repr(version), 40)}, and this version of onefold"
            f" reads {VERSION}: start with the version that wrote it",
        )
    return footer, Piece(name, size, found, footer.first, footer.end)


def _footer_of(values: dict[str, Any], size: int) -> Footer:
    """The footer of a file with `size` bytes before it. Raises ValueError, TypeError or KeyError for what `Footer` does
    not say, or names of other files than a snapshot's."""
    pieces = tuple(checked(Piece, piece) for piece in values.pop("pieces"))
    parts = tuple(checked(SnapshotPart, part) for part in values.pop("parts"))
    footer = checked(Footer, values | {"pieces": pieces, "parts": parts})
    is_database = any(part.what == FILE for part in parts)  # whose earlier files are its own, and no snapshots
    is_whole = (
        0 <= footer.first <= footer.end <= footer.max_parallelism <= MAX_PARALLELISM
        and all(0 <= piece.first <= piece.end <= footer.max_parallelism for piece in pieces)
        and all(owner_of(piece.name) and is_handle(piece.name) is not is_database for piece in pieces)
        and all(0 <= part.at <= part.at + part.bytes <= size and StateKind(part.kind) for part in parts)
        and all(part.what in _ENTRIES or (part.what == FILE and _OF_ROCKSDB.fullmatch(part.name)) for part in parts)
    )
    if not is_whole:
        raise ValueError("it names what no snapshot has")
    return footer


def read_part(storage: Storage, name: str, part: SnapshotPart) -> bytes:
    """Raises DataLoss where the file is gone, cut or changed."""
    data = _read(storage, name, part.at, part.bytes)
    if len(data) != part.bytes or zlib.crc32(data) != part.crc:
        raise _damaged(storage, name, f"its part of the state {part.name!r} of {part.uid!r} has another checksum")
    return data


def read_piece(storage: Storage, piece: Piece) -> bytes:
    """A file without a footer, whole. Raises DataLoss where it is gone, cut or changed."""
    data = _read(storage, piece.name, 0, None)
    if len(data) != piece.bytes or zlib.crc32(data) != piece.crc:
        raise _damaged(storage, piece.name, "its content has another checksum")
    return data


def footers_for(
    storage: Storage, handles: Sequence[str], groups: Collection[int], backend: str, max_parallelism: int
) -> list[tuple[Footer, Piece]]:
    """The footers of the snapshots, in the order of their key groups. Each of the given groups is in one of them.

    Raises CheckpointMismatch where another backend wrote them, or with another number of key groups; DataLoss where a
    file is gone, cut or changed."""
    found = sorted((read_footer(storage, handle) for handle in handles), key=lambda pair: pair[0].first)
    for footer, piece in found:
        if footer.backend != backend:
            raise CheckpointMismatch(
                "state-backend-changed",
                f"the snapshot {storage.path(piece.name)} was written by the {footer.backend} backend, which the"
                f" {backend} backend does not read: start with state={footer.backend!r}",
            )
        if footer.max_parallelism != max_parallelism:
            raise CheckpointMismatch(
                "max-parallelism-changed",
                f"the snapshot {storage.path(piece.name)} has {footer.max_parallelism} key groups, and the flow now has"
                f" {max_parallelism}: start with max_parallelism={footer.max_parallelism}",
            )
    covered = sorted(group for footer, _ in found for group in range(footer.first, footer.end) if group in groups)
    if found and covered != sorted(groups):
        raise _damaged(storage, found[0][1].name, "with the others of its operator it has not each key group once")
    return found


def _read(storage: Storage, name: str, offset: int, length: int | None) -> bytes:
    try:
        return storage.read(name, offset, length)
    except FileNotFoundError:
        raise _gone(storage, name) from None


def _gone(storage: Storage, name: str) -> DataLoss:
    return DataLoss("state-file-missing", f"the snapshot's file {storage.path(name)} is not there. {_WHAT_TO_DO}")


def _damaged(storage: Storage, name: str, how: str) -> DataLoss:
    return DataLoss("state-file-damaged", f"the snapshot's file {storage.path(name)} is damaged: {how}. {_WHAT_TO_DO}")


def copied(storage: Storage, piece: Piece) -> Iterator[Draft]:
    """The parts of a file, as they are."""
    footer, _ = read_footer(storage, piece.name, piece.crc)
    for part in footer.parts:
        if part.what != OPERATOR:
            yield part.spec, part.what, part.rows, read_part(storage, piece.name, part)
