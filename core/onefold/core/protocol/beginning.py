"""A pipeline that begins where another one stood, with that one's last epoch as the first of its own chain.

Number and time of the epoch go on, and so does what is compared by them: rows with their epoch's number, cells with its
time, which may have been copied from the other pipeline's destination. No I/O; the caller puts the query's checkpoint
in its place between `take` and `begin_at`.
"""

from __future__ import annotations

from dataclasses import dataclass

from onefold.core.contract import Binding, Generation, LedgerEntry
from onefold.core.errors import ConfigError
from onefold.core.positions import Positions, Relation
from onefold.core.protocol.binding import is_foreign, of_another_store
from onefold.core.protocol.effects import (
    AcquireGeneration,
    Adopt,
    Bind,
    Freeze,
    Protocol,
    ReadLedger,
    ReadStore,
    StoreFacts,
    WriteLedger,
    retry,
)


@dataclass(frozen=True, slots=True)
class SavepointOrigin:
    """The last complete epoch of the other pipeline, and the initial positions that were frozen there, if any were."""

    epoch: int
    timestamp_ms: int
    end: Positions
    frozen: Positions | None

    def is_last_of(self, facts: StoreFacts) -> bool:
        last = facts.last
        is_it = last is not None and (last.epoch, last.timestamp_ms) == (self.epoch, self.timestamp_ms)
        return is_it and not facts.unfinished and last is not None and self._ends_at(last.range.end)

    def is_in(self, ledger: LedgerEntry) -> bool:
        is_it = (ledger.epoch, ledger.timestamp_ms) == (self.epoch, self.timestamp_ms)
        return is_it and not ledger.members and ledger.announced is None and self._ends_at(ledger.positions)

    def _ends_at(self, end: Positions) -> bool:
        return end.relation_to(self.end) is Relation.SAME


def take(origin: SavepointOrigin, sinks: tuple[str, ...], again: bool = False) -> Protocol[tuple[Generation, str]]:
    """A new generation of the pipeline that is to begin there, and its store's id.

    Raises ConfigError where it has written or begun something; with `again` that may be this very origin.
    """
    ledgers: dict[str, LedgerEntry | None] = {}
    for sink in sinks:
        ledgers[sink] = yield from retry(ReadLedger(sink))
    seen = [entry.generation for entry in ledgers.values() if entry is not None]
    before: StoreFacts = yield from retry(ReadStore())
    for sink, entry in ledgers.items():
        if entry is not None and is_foreign(entry, before.store_id):
            raise of_another_store(sink, entry, before.store_id)
        if entry is not None and not _is_empty(entry) and not (again and origin.is_in(entry)):
            raise _has_written(f"sink {sink!r} has a ledger of it, at epoch {entry.epoch}")
    _check_is_new(before, origin, again)
    generation: Generation = yield from retry(AcquireGeneration(above=max(seen, default=0)))
    facts: StoreFacts = yield from retry(ReadStore())
    _check_is_new(facts, origin, again)  # it may have been started meanwhile
    return generation, facts.store_id


def begin_at(origin: SavepointOrigin, generation: Generation, store_id: str, sinks: tuple[str, ...]) -> Protocol[None]:
    """Write the epoch into every sink's ledger, then into the store. The same again changes nothing."""
    if origin.frozen is not None:
        yield from retry(Freeze(generation, origin.frozen))
    for sink in sinks:
        yield from retry(Bind(sink, Binding(store_id, generation.number)))
    entry = LedgerEntry(origin.epoch, generation.number, origin.timestamp_ms, origin.end, store_id)
    for sink in sinks:
        yield from retry(WriteLedger(sink, entry))
    yield from retry(Adopt(generation, entry, sinks))


def _is_empty(entry: LedgerEntry) -> bool:
    return entry.epoch == 0 and not entry.members and entry.announced is None


def _check_is_new(facts: StoreFacts, origin: SavepointOrigin, again: bool) -> None:
    if again and origin.is_last_of(facts):
        return
    if facts.last is not None or facts.unfinished:
        number = (facts.last or facts.unfinished[0]).epoch
        raise _has_written(f"the checkpoint store has it at epoch {number}")
    began = facts.frozen
    if (
        began is not None
        and not again
        and (origin.frozen is None or began.relation_to(origin.frozen) is not Relation.SAME)
    ):
        raise _has_written("it was started before, and where it begins was settled then")


def _has_written(because: str) -> ConfigError:
    return ConfigError(
        "pipeline-not-new",
        f"a savepoint is restored into a pipeline that was never started, and {because}. Nothing was changed: give the"
        " definition another name, or `onefold reset` that pipeline first",
    )
