"""What a savepoint says of itself: `savepoint.json`, beside the copy of the query's checkpoint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from onefold.core import ConfigError, Positions
from onefold.core.values.checked import checked
from onefold.core.values.plain import plain
from onefold.store.pins import ENDPOINTS
from onefold.store.savepoint_notes import MADE, RESTORED

__all__ = ["CHECKPOINT", "DESCRIPTION", "PARTIAL", "CopiedFile", "Savepoint", "SinkState", "carried"]

FORMAT = 1
DESCRIPTION = "savepoint.json"
CHECKPOINT = "checkpoint"  # the folder with the copy
PARTIAL = ".partial"  # the end of the name of one that is being made
# Pins of a pipeline's own tables, savepoints, restores and process.
_NOT_CARRIED = (ENDPOINTS, "targets", "restore", "beginning", "driver", MADE, RESTORED)


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """A file of the copy: its path there, its size, and the SHA-256 of its content."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class SinkState:
    """A sink at that epoch: what it promised, and what its ledger said."""

    name: str
    mode: str
    kind: str
    ledger_epoch: int
    ledger_positions: Mapping[str, int | str]


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A pipeline at rest after `epoch`: all that Spark, the ledger and the store knew of it."""

    name: str
    made_at: str  # ISO 8601, UTC
    pipeline: str
    onefold: str
    spark: str
    store_id: str
    generation: int
    epoch: int
    timestamp_ms: int
    query_id: str
    batch_id: int
    fingerprint: str
    positions: Positions
    frozen: Positions | None  # the pipeline's initial positions
    sinks: tuple[SinkState, ...]
    pins: Mapping[str, str]  # what the pipeline's first start found for good, such as a schema
    partitions: int | None  # spark.sql.shuffle.partitions of the query
    provider: str | None  # the class of its state stores; None for a query without state
    files: tuple[CopiedFile, ...] = field(repr=False)

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
            frozen, sinks, files = values["frozen"], values["sinks"], values["files"]
            if not (isinstance(sinks, list) and isinstance(files, list)):
                raise TypeError("no lists")
            found = checked(
                cls,
                values
                | {
                    "positions": Positions.from_flat(values["positions"]),
                    "frozen": None if frozen is None else Positions.from_flat(frozen),
                    "sinks": tuple(checked(SinkState, sink) for sink in sinks),
                    "files": tuple(checked(CopiedFile, file) for file in files),
                },
            )
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError("it is no savepoint's") from error
        # A digest is no signature: somebody who may write there must not choose what a restore overwrites.
        for file in found.files:
            if "\0" in file.path or not all(part.strip(".") for part in file.path.split("/")):
                raise ValueError(f"it names {plain(file.path, 200)}, which is outside of it")
        return found

    def _body(self) -> dict[str, Any]:
        frozen = None if self.frozen is None else json.loads(self.frozen.to_json())
        values = asdict(self) | {"positions": json.loads(self.positions.to_json()), "frozen": frozen}
        return {"format": FORMAT, **values}


def carried(pins: Mapping[str, str]) -> dict[str, str]:
    """Those that another pipeline may have; a savepoint that somebody has written names any."""
    return {name: value for name, value in pins.items() if name not in _NOT_CARRIED}


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
