"""What an audit asks of the places that a pipeline writes to. Their servers answer, not the sinks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

import psycopg
from confluent_kafka import KafkaException
from kafka.errors import KafkaError

from onefold.core import Committable, EpochRecord, LedgerEntry, OnefoldError
from onefold.core.invariants import Comparison
from onefold.trials.torture.destinations.comparison import Place
from onefold.trials.workload.mixed import MixedOrder

__all__ = ["SERVER_ERRORS", "Committed", "Destination", "Due", "Found"]

SERVER_ERRORS = (OnefoldError, psycopg.Error, KafkaException, KafkaError)  # raised by whoever asks one that is down


@dataclass(frozen=True, slots=True)
class Due:
    """What the source says, up to where the pipeline stands: orders but for refunds, and what is none."""

    orders: Mapping[Place, MixedOrder]
    unreadable: Mapping[Place, bytes]
    epochs: tuple[EpochRecord, ...] = ()  # in their order


@dataclass(frozen=True, slots=True)
class Found:
    """A destination beside what is due. `disorders` tell of rows that stand in another order than in the source."""

    comparison: Comparison
    disorders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Committed:
    """The parts that a destination shows as committed, of the epochs from `since` on."""

    parts: tuple[Committable, ...]
    since: int = 0


class Destination(Protocol):
    """One sink's. Any call may raise one of SERVER_ERRORS."""

    @property
    def name(self) -> str:
        """The sink's."""
        ...

    @property
    def writes_through(self) -> bool:
        """Whether rows show before they are decided."""
        ...

    def create(self) -> None:
        """What must be there before the pipeline starts."""
        ...

    def ledger(self) -> LedgerEntry | None: ...

    def look(self, due: Due) -> Found:
        """Once the pipeline rests."""
        ...

    def leftovers(self) -> tuple[Committable, ...]:
        """Whatever is prepared, open or staged, of anybody: none where the pipeline rests."""
        ...

    def committed(self, epochs: Collection[EpochRecord], ledger: LedgerEntry | None) -> Committed | None:
        """None where the destination cannot tell."""
        ...

    def close(self) -> None: ...
