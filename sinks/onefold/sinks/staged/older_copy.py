"""A destination that is an older copy of itself (a restored backup, a replica that lagged) is noticed."""

from __future__ import annotations

from onefold.core.errors import DataLoss

__all__ = ["LedgerMemory"]


class LedgerMemory:
    """The last epoch that this process knows to be in the destination's ledger."""

    def __init__(self) -> None:
        self._epoch = 0

    @property
    def epoch(self) -> int:
        return self._epoch

    def read(self, epoch: int) -> None:
        """The ledger was read anew, and whoever asked compares it with the store."""
        self._epoch = epoch

    def wrote(self, epoch: int) -> None:
        self._epoch = max(self._epoch, epoch)

    def is_older(self, there: int) -> bool:
        return there < self._epoch

    def check(self, where: str, there: int, became: str | None = None) -> None:
        """Called before the ledger moves forward: over a gap it would hide what the server has lost. Raises DataLoss.

        The log of a server is one sequence: if the last row that we know of is there, all before it is.
        """
        if self.is_older(there):
            raise DataLoss(
                "destination-older-copy",
                f"{where}: the ledger stands at epoch {there}, and epoch {self._epoch} was completed there before:"
                f" {became or 'the destination is an older copy'}. Nothing more was written. Bring back the server that"
                " has the rest; or start the pipeline again: it compares the store, the ledger and Spark's checkpoint,"
                " and says how to go on",
            )
