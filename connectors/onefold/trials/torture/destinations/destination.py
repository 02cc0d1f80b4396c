"""The destinations of a pipeline, as an audit reads them: from their servers, and not through the sinks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

import psycopg
from confluent_kafka import KafkaException
from kafka.errors import KafkaError

from onefold.core import Committable, EpochRecord, LedgerEntry, OnefoldError
from onefold.core.invariants import Comparison
from onefold.trials.torture.destinations.table_comparison import RecordId
from onefold.trials.workload.mixed import MixedOrder

SERVER_ERRORS = (OnefoldError, psycopg.Error, KafkaException, KafkaError)  # raised by whoever asks one that is down


@dataclass(frozen=True, slots=True)
class DueRecords:
    """The source's records up to the pipeline's position: orders without refunds, and records that are no orders."""

    orders: Mapping[RecordId, MixedOrder]
    unreadable: Mapping[RecordId, bytes]
    epochs: tuple[EpochRecord, ...] = ()  # the decided ones, in their order


@dataclass(frozen=True, slots=True)
class Compared:
    """A destination compared with what is due. `disorders` name rows in another order than in the source."""

    comparison: Comparison
    disorders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommittedParts:
    """The parts that a destination shows as committed, of the epochs from `since` on."""

    parts: tuple[Committable, ...]
    since: int = 0


class Destination(Protocol):
    """The destination of one sink. Any call may raise one of SERVER_ERRORS."""

    @property
    def name(self) -> str:
        """The sink's name."""
        ...

    @property
    def writes_through(self) -> bool:
        """Whether rows show before they are decided."""
        ...

    def create(self) -> None:
        """Create what must be there before the pipeline starts."""
        ...

    def ledger(self) -> LedgerEntry | None: ...

    def look(self, due: DueRecords) -> Compared:
        """Compare the destination with what is due, once the pipeline rests."""
        ...

    def leftovers(self) -> tuple[Committable, ...]:
        """All prepared, open or staged work, of any pipeline: none where the pipeline rests."""
        ...

    def committed(self, epochs: Collection[EpochRecord], ledger: LedgerEntry | None) -> CommittedParts | None:
        """The committed parts; None where the destination does not keep them."""
        ...

    def close(self) -> None: ...
