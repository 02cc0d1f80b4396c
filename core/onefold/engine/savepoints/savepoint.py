"""Savepoints: what each says of itself in `savepoint.json`, beside its files; which there are, and which of them are
damaged. The files are a copy of a query's checkpoint, or a flow's state as tables.

What is missing or is another content is damage, for good; what cannot be read now, though it is there, is not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from onefold.clients.files import FileSystem
from onefold.core import ConfigError, OnefoldError, Positions, Retriable
from onefold.core.moves import MoveNote
from onefold.core.protocol.effects import StoreFacts
from onefold.core.values.checked import checked
from onefold.core.values.plain import plain, shown_url
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.pins import ENDPOINTS
from onefold.store.savepoint_notes import MADE, RESTORED

FORMAT = 2
DESCRIPTION_BYTES_MAX = 64 << 20  # of some 400,000 files
DESCRIPTION = "savepoint.json"
CHECKPOINT, STATE = "checkpoint", "state"  # the folder with the copy, and that with the tables
PARTIAL = ".partial"  # the end of the name of one that is being made
# Pins of a pipeline's own tables, savepoints, restores and process.
_KINDS = ("value", "list", "map", "timers", "operator", "clocks", "blocks", "rows")
_NOT_CARRIED = (ENDPOINTS, "targets", "restore", "beginning", "driver", MADE, RESTORED)


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """A file of the copy: its path there, its size, and the SHA-256 of its content."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class QueryCheckpoint:
    """Of a query of Spark's: its last batch that was done, and how its state was kept."""

    spark: str
    query_id: str
    batch_id: int
    partitions: int | None  # spark.sql.shuffle.partitions
    provider: str | None  # the class of its state stores; None for a query without state


@dataclass(frozen=True, slots=True)
class SavedState:
    """One state of one operator: tables in files, of one schema or several. `keys` are how many columns the key of a
    row has, where it is rows that are kept (onefold.engine.savepoints)."""

    uid: str
    name: str
    kind: str
    keys: int
    rows: int
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FlowState:
    """Of a flow's operators. `runtime` is where it ran, for people; `journals` is the file with what its sources keep
    beside their positions (columns source, name, text), where they keep something."""

    runtime: str
    max_parallelism: int
    states: tuple[SavedState, ...]
    journals: str | None = None

    def files(self) -> list[str]:
        journals = [] if self.journals is None else [self.journals]
        return [*journals, *(file for state in self.states for file in state.files)]

    def uids(self) -> list[str]:
        return [*dict.fromkeys(state.uid for state in self.states)]


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A pipeline at rest after `epoch`: where it stood, and all that it kept. Of one of Spark's `query` says how its
    checkpoint is; of one whose state is tables `flow` says which."""

    name: str
    made_at: str  # ISO 8601, UTC
    pipeline: str
    onefold: str
    store_id: str
    generation: int
    epoch: int
    timestamp_ms: int
    fingerprint: str
    positions: Positions
    frozen: Positions | None  # the pipeline's initial positions
    pins: Mapping[str, str]  # what the pipeline's first start found for good, such as a schema
    files: tuple[CopiedFile, ...] = field(repr=False)
    query: QueryCheckpoint | None = None
    flow: FlowState | None = None

    @property
    def keeps_state(self) -> bool:
        return bool(self.flow and self.flow.states) or bool(self.query and self.query.provider)

    @property
    def is_of_tables(self) -> bool:
        """Whether somebody made it of tables, and no pipeline."""
        return not self.store_id

    @property
    def folder(self) -> str:
        """Where its files are, in its own."""
        return STATE if self.query is None else CHECKPOINT

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def digest(self) -> str:
        """SHA-256 of all of it, the files' own included."""
        return _digest(self._body())

    def to_json(self) -> str:
        body = self._body()
        return json.dumps(body | {"digest": _digest(body)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Savepoint:
        """Raises ValueError for a text that is no savepoint's or was changed, ConfigError for a newer format."""
        try:
            values: dict[str, Any] = dict(json.loads(text))
            version = int(values["format"])
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise ValueError("it is no savepoint's") from error
        if version != FORMAT:
            name, maker = (plain(str(values.get(key)), 100) for key in ("name", "onefold"))
            raise ConfigError(
                "savepoint-too-new",
                f"the savepoint {name!r} has format {version}, and this onefold knows {FORMAT}: use the onefold that"
                f" made it ({maker}), or a newer one",
            )
        digest = values.pop("digest", None)
        if digest != _digest(values):
            raise ValueError("its content is not what was written")
        del values["format"]
        try:
            frozen, files, query, flow = (values[each] for each in ("frozen", "files", "query", "flow"))
            if not isinstance(files, list) or (query is None) == (flow is None):
                raise TypeError("no files, or no kind")
            found = checked(
                cls,
                values
                | {
                    "positions": Positions.from_flat(values["positions"]),
                    "frozen": None if frozen is None else Positions.from_flat(frozen),
                    "files": tuple(checked(CopiedFile, file) for file in files),
                    "query": None if query is None else checked(QueryCheckpoint, query),
                    "flow": None if flow is None else _flow_of(flow),
                },
            )
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError("it is no savepoint's") from error
        # A digest is no signature: somebody who may write there must not choose what a restore overwrites.
        for file in found.files:
            if "\0" in file.path or not all(part.strip(".") for part in file.path.split("/")):
                raise ValueError(f"it names {plain(file.path, 200)}, which is outside of it")
        if found.flow is not None and {*found.flow.files()} != {file.path for file in found.files}:
            raise ValueError("its states name other files than it has")
        return found

    def _body(self) -> dict[str, Any]:
        frozen = None if self.frozen is None else json.loads(self.frozen.to_json())
        values = asdict(self) | {"positions": json.loads(self.positions.to_json()), "frozen": frozen}
        return {"format": FORMAT, **values}


def carried(pins: Mapping[str, str]) -> dict[str, str]:
    """Those that another pipeline may have; a savepoint that somebody has written names any."""
    return {name: value for name, value in pins.items() if name not in _NOT_CARRIED}


def _flow_of(values: Mapping[str, Any]) -> FlowState:
    states = [checked(SavedState, state | {"files": tuple(state["files"])}) for state in values["states"]]
    if any(state.kind not in _KINDS for state in states):
        raise ValueError("it has a kind of state that nobody knows")
    return checked(FlowState, {**values, "states": tuple(states)})


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class Damage(ValueError):
    """A savepoint is damaged: which file, and how."""


@dataclass(frozen=True, slots=True)
class ListedSavepoint:
    """A folder that should be a savepoint's. `damage` says what is wrong with it, `unreadable` why that cannot be said
    now; both are None where it is whole."""

    name: str
    savepoint: Savepoint | None
    damage: str | None = None
    unreadable: str | None = None

    @property
    def is_whole(self) -> bool:
        return self.damage is None and self.unreadable is None

    @property
    def verdict(self) -> str:
        if self.damage is not None:
            return "DAMAGED"
        return "whole" if self.unreadable is None else "UNREADABLE"


def listed(files: FileSystem, folder: str) -> list[ListedSavepoint]:
    """All in the folder, the oldest first. Reads every file. Hidden folders and those of a `create` that was cut short
    are left out."""
    names = [name for name in files.names(folder) if not name.startswith(".") and not name.endswith(PARTIAL)]
    found = [_listed(files, f"{folder}/{name}", name) for name in names]
    return sorted(found, key=lambda each: ("", 0) if (of := each.savepoint) is None else (of.made_at, of.epoch))


def find(files: FileSystem, folder: str, name: str) -> Savepoint:
    """Raises ConfigError for one that is not there, or whose description is damaged; its copy is not read."""
    is_name = name not in ("", ".", "..") and "/" not in name and not name.endswith(PARTIAL)
    if not is_name or not files.exists(f"{folder}/{name}"):
        there = [plain(each) for each in files.names(folder) if not each.endswith(PARTIAL)]
        known = f"there are {', '.join(there)}" if there else "there is none"
        raise ConfigError("savepoint-missing", f"there is no savepoint {name!r} in {shown_url(folder)}; {known}")
    try:
        return _read_savepoint(files, f"{folder}/{name}")
    except Damage as damage:
        raise ConfigError(
            "savepoint-damaged",
            f"savepoint {name!r} in {shown_url(folder)} is damaged: {plain(str(damage))}. Use another one",
        ) from damage


def damaged(savepoint: Savepoint, because: Exception) -> ConfigError:
    """The error for one whose files are not what was written, before anything was changed."""
    return ConfigError(
        "savepoint-damaged",
        f"savepoint {savepoint.name!r} is damaged: {plain(str(because))}. Nothing was changed: use another one",
    )


def refuse_needed(store: CheckpointStore, facts: StoreFacts | None, savepoint: Savepoint, pipeline: str) -> None:
    """Raise ConfigError where a pipeline on Spark is to begin with its state, and has not yet."""
    last = None if facts is None else facts.last
    for moved in store.moves(pipeline) if last is not None else ():
        state = MoveNote.of(moved).state
        if last is not None and state is not None and state[1] == savepoint.digest and moved.epoch >= last.epoch - 1:
            raise ConfigError(
                "savepoint-needed",
                f"pipeline {pipeline!r} is to begin on Spark with the state of savepoint {savepoint.name!r}, which is"
                " nowhere else yet: let it write two epochs first. Nothing was removed",
            )


def _listed(files: FileSystem, place: str, name: str) -> ListedSavepoint:
    savepoint = None
    try:
        savepoint = _read_savepoint(files, place)
        for file in savepoint.files:
            for _ in read_copy(files, place, savepoint, file):
                pass
    except Damage as damage:
        return ListedSavepoint(name, savepoint, damage=str(damage))
    except OnefoldError as error:
        return ListedSavepoint(name, savepoint, unreadable=error.message)
    return ListedSavepoint(name, savepoint)


class Counted:
    """How many bytes went through `of`, and their SHA-256."""

    def __init__(self) -> None:
        self.bytes = 0
        self._hash = hashlib.sha256()

    def of(self, content: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in content:
            self.bytes += len(chunk)
            self._hash.update(chunk)
            yield chunk

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


def _read_savepoint(files: FileSystem, place: str) -> Savepoint:
    """By its description; its copy is not read. Raises Damage, and Retriable where it cannot be read now."""
    content = b"".join(_read(files, place, DESCRIPTION, DESCRIPTION_BYTES_MAX))
    try:
        return Savepoint.from_json(content.decode())
    except ValueError as error:
        raise Damage(f"{DESCRIPTION}: {error}") from error


def read_copy(files: FileSystem, place: str, of: Savepoint, file: CopiedFile) -> Iterator[bytes]:
    """One of its files. Raises Damage, at the end where the content is another one; Retriable where it cannot
    be read now."""
    count = Counted()
    yield from count.of(_read(files, place, f"{of.folder}/{file.path}", file.bytes))
    if count.sha256 != file.sha256:
        raise Damage(f"{file.path} is not what was copied")


def _read(files: FileSystem, place: str, path: str, bytes_max: int) -> Iterator[bytes]:
    """What is longer was changed, and may have no end."""
    left = bytes_max
    try:
        for chunk in files.read(place, path):
            left -= len(chunk)
            if left < 0:
                raise Damage(f"{path} is longer than what was written")
            yield chunk
    except Retriable as error:
        if files.exists(f"{place}/{path}"):
            raise
        raise Damage(f"{path} is missing") from error
