"""A session that moves a pipeline's positions, and runs no query."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import ClassVar

from onefold.core.checks import present
from onefold.core.contract import Committable, EpochRecord, Repeatable, Sink
from onefold.core.findings import Targeting
from onefold.core.moves import MoveNote, Repeats
from onefold.core.positions import Positions
from onefold.core.protocol.coordinator import Files
from onefold.core.protocol.effects import StoreFacts
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.job.lifecycle import Lifecycle
from onefold.store.job.query import QueryLifecycle
from onefold.store.job.session import Session


def repeats_in(sink: Sink, pipeline: str) -> Repeats:
    """What records that come again make of the sink's destination, as it is now. Asks its server."""
    if isinstance(sink, Targeting) and sink.target_now(pipeline).is_there and sink.is_empty(pipeline):
        return Repeats.NEW
    absorbs = isinstance(sink, Repeatable) and sink.absorbs_repeats()
    return Repeats.ABSORBED if absorbs else Repeats.DOUBLED


class MoveSession(Session):
    """`files` is the query's checkpoint, at `root`, where it can be read from here; `set_aside` gives it another name,
    which says the epoch that it is told. `added` are sinks that the last epoch did not name."""

    LIFECYCLE: ClassVar[type[Lifecycle]] = QueryLifecycle
    lifecycle: QueryLifecycle

    def __init__(
        self,
        name: str,
        sinks: Sequence[Sink],
        store: CheckpointStore,
        patience_s: float,
        letters: Collection[str],
        set_aside: Callable[[int], None],
        files: Files | None = None,
        root: str | None = None,
        added: Collection[str] = (),
    ) -> None:
        super().__init__(name, sinks, store, patience_s, (*letters, *added))
        everyone = {sink.name: sink for sink in self.sinks}
        self._root = root
        self._driver.on_acquired = None  # what it does is over before anybody looks for a driver
        self._driver.files = files
        self._driver.set_aside = set_aside
        self._driver.repeats = lambda sink: repeats_in(everyone[sink], name)

    def take_over(self, *, compares: bool = True) -> tuple[StoreFacts, Sequence[EpochRecord]]:
        """Fence every other driver, finish what was decided, and look where the pipeline stands. Raises what a start
        raises. The checkpoint is compared with the store, unless it is left over (`compares=False`)."""
        self.check_restored()
        return self.drive(self.lifecycle.before_move(self._root if compares else None))

    def move(self, to: Positions, note: MoveNote) -> EpochRecord:
        """Move the positions, after `take_over`. Raises ConfigError where they can't be moved: then nothing was."""
        return self.drive(self.lifecycle.move(to, note))

    def restore(
        self,
        to: Positions,
        note: MoveNote,
        sinks: Sequence[str],
        prepare: Callable[[EpochRecord], tuple[Committable, ...]],
    ) -> EpochRecord:
        """Have the pipeline go on from there with these sinks of the session, and with the state that `prepare` makes
        of a savepoint, after `take_over`. Raises ConfigError where it can't."""
        return self.drive(self.lifecycle.move(to, note, tuple(sinks), with_state=True), prepare)

    def change_sinks(self, note: MoveNote) -> EpochRecord:
        """Have the chain go on with the sinks of today, after `take_over`. Raises ConfigError where it can't yet."""
        started = present(self.started, "no change without a start")
        self.patience.retry(lambda: self.note_endpoints(started.generation), "noting the sinks of today")
        return self.drive(self.lifecycle.change_sinks(note))
