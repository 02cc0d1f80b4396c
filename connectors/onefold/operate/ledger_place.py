"""Where something of a pipeline is kept, as `onefold reset` sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

__all__ = ["LedgerPlace"]


class LedgerPlace(Protocol):
    """The ledgers of one server, and the targets that are named beside them."""

    @property
    def server(self) -> str:
        """Its address, for the lines of the plan."""
        ...

    def found(self) -> Iterable[str]:
        """What it keeps of the pipeline beside the targets, each for a line of the plan. Changes nothing."""
        ...

    def targets(self) -> Mapping[str, str | None]:
        """Each named target with its line of the plan; None where there is no such target. Raises ConfigError for one
        that cannot be emptied."""
        ...

    def generation(self) -> int | None:
        """The newest that its ledgers name, 0 where they name none; None where there is no ledger."""
        ...

    def remove(self) -> None:
        """All that `found` and `targets` name, a ledger after its rows. The same again removes what is left."""
        ...

    def close(self) -> None: ...
