"""The Protocols of a checkpoint store and of a query's checkpoint. The simulator has both in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from onefold.core.contract import Committable, Decided, EpochRecord, Generation, LedgerEntry
from onefold.core.positions import Positions
from onefold.core.protocol.effects import EpochRequest, StoreFacts

__all__ = ["Files", "Merge", "Store"]

Merge: TypeAlias = Callable[[Any], None]  # it gets the driver's own connection (DB-API)


class Files(Protocol):
    """The files of a query's checkpoint, on any filesystem. Raises `Retriable` where it doesn't answer."""

    def read(self, path: str) -> str | None: ...

    def names(self, folder: str) -> Sequence[str]: ...


class Store(Protocol):
    """A checkpoint store. Every call is one transaction; `CheckpointStore` documents each."""

    def id(self) -> str: ...

    def acquire(self, pipeline: str, above: int, last: Generation | None = None) -> Generation: ...

    def facts(self, pipeline: str) -> StoreFacts: ...

    def freeze(self, generation: Generation, initial: Positions) -> Positions: ...

    def find(self, pipeline: str, request: EpochRequest) -> EpochRecord | None: ...

    def open_epoch(
        self,
        generation: Generation,
        request: EpochRequest,
        after: int,
        now_ms: int,
        completes: Decided | None = None,
    ) -> EpochRecord: ...

    def decide(
        self,
        generation: Generation,
        record: EpochRecord,
        manifest: Sequence[Committable],
        now_ms: int,
        merge: Merge | None = None,
    ) -> Decided: ...

    def complete(self, generation: Generation, decided: Decided, now_ms: int) -> None: ...

    def give_up(self, generation: Generation, record: EpochRecord) -> None: ...

    def damage(self, generation: Generation, decided: Decided, evidence: str) -> None: ...

    def accept_damage(self, generation: Generation, record: EpochRecord) -> Decided: ...

    def moves(self, pipeline: str) -> Sequence[EpochRecord]: ...

    def anchor(self, generation: Generation, origin: Positions) -> None: ...

    def adopt(self, generation: Generation, entry: LedgerEntry, sinks: tuple[str, ...], now_ms: int) -> None: ...
