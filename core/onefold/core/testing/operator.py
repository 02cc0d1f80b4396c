"""What befalls a simulated world from outside, and what its operator does about the errors that follow.

Whoever restores an older copy, deletes a checkpoint or renames a sink meets an error that says what to do. The operator
does what it says, once, and then everything must come right.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onefold.core.contract import EpochState, SinkKind
from onefold.core.errors import BadRecord, CheckpointMismatch, ConfigError, Damaged, DataLoss
from onefold.core.positions import Positions
from onefold.core.testing.faults import RIVALS, TRIALS, Fault

if TYPE_CHECKING:
    from onefold.core.testing.model_store import ModelStore
    from onefold.core.testing.models import ModelSink
    from onefold.core.testing.world import World

__all__ = ["Checkpoint", "Host", "Operator"]

ADOPTIONS = (Fault.OLD_STORE_ADOPTED, Fault.NEW_STORE_ADOPTED)


@dataclass
class Checkpoint:
    """Spark's: how far each batch goes, and which are done. Where batch 0 began, Spark doesn't log."""

    offsets: dict[int, Positions] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)

    def copy(self) -> Checkpoint:
        return Checkpoint(dict(self.offsets), set(self.commits))

    @property
    def committed_end(self) -> Positions | None:
        return self.offsets[max(self.commits)] if self.commits else None


@dataclass
class Host:
    """Where a pipeline runs: its store, its checkpoint, and where it first began to read."""

    store: ModelStore
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    first_start: Positions | None = None


class Operator:
    """Holds the copies, and the settings of the next start."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.mishap: Fault | None = None
        self.backup: dict[str, Any] | None = None
        self.newer: dict[str, Any] | None = None
        self.newer_store: dict[str, Any] | None = None  # from before an older database came into use
        self.expects_damage = self.bad_record = self.cuts_anew = self.topic_is_new = False
        self.from_ledger = self.adopts = False
        self.accepts_damage: int | None = None
        self.home: Host | None = None  # where the pipeline ran before another host began to
        self.input = "first"
        self._batch_step = 1
        self._has_tried = False

    @property
    def on_trial(self) -> bool:
        """Whether the next life only starts, with settings that somebody tries."""
        return self.mishap in TRIALS

    def ends_trial(self) -> bool:
        """The settings that were tried missed nothing yet: put them back. False if there was no trial."""
        was, self.mishap = self.on_trial, None if self.on_trial else self.mishap
        return was

    def configured_sinks(self) -> dict[str, ModelSink]:
        sinks = dict(self.world.sinks)
        if self.mishap is Fault.SINK_REMOVED:
            sinks.popitem()
        elif self.mishap is Fault.SINK_ADDED:
            sinks["sink-added"] = self.world.subject.models[SinkKind.TWO_PHASE]("sink-added")
        return sinks

    def batch_step(self) -> int:
        step, self._batch_step = self._batch_step, 1
        return step

    def back_up(self) -> None:
        self.backup = self._copy()

    def move(self, fault: Fault) -> None:
        """Another host starts the pipeline, which sleeps on this one."""
        self.mishap, self.home = fault, self.world.host
        self.world.host = Host(self.world.subject.store("another-store"))

    def suffer(self, mishap: Fault) -> None:
        """Something happens while the process is down."""
        world, self.mishap, self.newer = self.world, mishap, self._copy()
        match mishap:
            case Fault.OLD_CHECKPOINT if self.backup:
                self._restore(self.backup, "checkpoint")
            case Fault.OTHER_INPUT if self.backup:
                self.input = "other"
                self._restore(self.backup, "checkpoint")
            case Fault.OLD_STORE | Fault.OLD_STORE_ADOPTED | Fault.STORE_GOES_BACK if self.backup:
                self._restore(self.backup, *self._with_the_store)
            case Fault.OLD_SINK if self.backup:
                self._restore(self.backup, *self._elsewhere[:1])
            case Fault.OLD_DATABASE | Fault.OLD_DATABASE_CUT_ANEW if self.backup:
                self.newer_store = self.newer
                self._restore(self.backup, "store", *world.sinks)
                self.cuts_anew |= mishap is Fault.OLD_DATABASE_CUT_ANEW
            case Fault.STORE_BACK if self.newer_store:
                self._restore(self.newer_store, "store")
            case Fault.NEW_STORE | Fault.NEW_STORE_ADOPTED:
                world.store.restore(world.subject.store("another-store").backup())
            case Fault.NEW_CHECKPOINT:
                world.checkpoint = Checkpoint()
            case Fault.OTHER_CUT:
                self.cuts_anew = True
                self._forget_plan()
            case Fault.OTHER_CUT_NEW_CHECKPOINT:
                self.cuts_anew = True
                world.checkpoint = Checkpoint()
            case Fault.BATCHES_SKIPPED:
                self._batch_step = 3
            case Fault.TOPIC_ANEW:
                self.topic_is_new = True

    def cures(self, error: Exception) -> bool:
        """Do what the error says, if it is one that what happened here explains. False: nobody knows a way out."""
        self.world.refusals[self.mishap.value if self.mishap else "-", type(error).__name__] += 1
        if isinstance(error, BadRecord) and self.bad_record:
            self.bad_record = False
            return True
        if isinstance(error, Damaged) and self.mishap is Fault.STORE_BACK and self.newer_store:
            self._restore(self.newer_store, "checkpoint", "store", *self.world.sinks)
            self.mishap = self.newer = None
            return True
        if isinstance(error, Damaged) and (self.expects_damage or self.mishap is Fault.OLD_SINK):
            return self._makes_good()
        if isinstance(error, CheckpointMismatch) and self.mishap in RIVALS and self.home is not None:
            self._goes_on(self.home)
            return True
        if not isinstance(error, CheckpointMismatch | DataLoss | ConfigError) or self.newer is None:
            return False
        newer, mishap = self.newer, self.mishap
        if mishap is Fault.STORE_GOES_BACK and not self._has_tried:
            self._has_tried = True  # as the error says: start again, and hear what can be done
            return True
        if mishap in ADOPTIONS and not self.adopts:
            self.adopts = self.from_ledger = True
            self.world.checkpoint = Checkpoint()
            return True
        match mishap:
            case (
                Fault.OLD_STORE
                | Fault.OLD_STORE_ADOPTED
                | Fault.STORE_GOES_BACK
                | Fault.NEW_STORE
                | Fault.NEW_STORE_ADOPTED
            ):
                self.adopts = self.from_ledger = False
                self._restore(newer, "checkpoint", *self._with_the_store)
            case Fault.STORE_BACK if self.newer_store:
                self._restore(self.newer_store, "checkpoint", "store", *self.world.sinks)
            case Fault.OLD_SINK:
                self._restore(newer, *self._elsewhere[:1])
            case Fault.OTHER_INPUT:
                self.input = "first"
                self._restore(newer, "checkpoint")
            case Fault.TOPIC_ANEW:
                self.topic_is_new = False
                self._forget_plan()
            case Fault.SINK_REMOVED | Fault.SINK_ADDED:
                pass  # put back as it was
            case _:
                self.world.checkpoint, self.from_ledger = Checkpoint(), True
        self.mishap = self.newer = None
        return True

    def _goes_on(self, home: Host) -> None:
        """The other host was refused: it adopts the destination, or is given up. Where the adoption was refused, the
        first host takes back what may be bound to the other one; else it never noticed."""
        if self.mishap is Fault.RIVAL_ADOPTED and not self.adopts:
            self.adopts = self.from_ledger = True
            return
        self.from_ledger, self.expects_damage = False, self.adopts
        self.world.host, self.mishap, self.home = home, None, None
        if not self.adopts:
            self.world.resume(home)

    def _makes_good(self) -> bool:
        """Bring the newer copy back if there is one, write what can't be committed by hand, then accept the damage.

        What is prepared in a sink that was never restored is the protocol's to commit: it has, when it says damaged.
        """
        world = self.world
        restored: tuple[str, ...] = ()
        if self.mishap is Fault.OLD_SINK and self.newer is not None:
            restored = self._elsewhere[:1]
            self._restore(self.newer, *restored)
            self.mishap = self.newer = None
        damaged = [r for r in world.store.epochs.values() if r.state is EpochState.DAMAGED]
        for record in damaged:
            for committable in record.manifest:
                sink = world.sinks[committable.sink]
                is_due = committable.handle not in sink.prepared or sink.name in restored
                if sink.kind is SinkKind.TWO_PHASE and is_due:
                    sink.committed.setdefault(committable.handle, world.written[committable.handle])
            self.accepts_damage = record.epoch
        return bool(damaged)

    def _forget_plan(self) -> None:
        """Delete the newest file in the checkpoint's `offsets`, if that batch isn't done."""
        checkpoint = self.world.checkpoint
        for batch in checkpoint.offsets.keys() - checkpoint.commits:
            del checkpoint.offsets[batch]

    def _copy(self) -> dict[str, Any]:
        world = self.world
        return {
            "checkpoint": world.checkpoint.copy(),
            "store": world.store.backup(),
            **{name: sink.backup() for name, sink in world.sinks.items()},
        }

    def _restore(self, source: dict[str, Any], *names: str) -> None:
        for name in names:
            if name == "checkpoint":
                self.world.checkpoint = source[name].copy()
            else:
                (self.world.store if name == "store" else self.world.sinks[name]).restore(source[name])

    @property
    def _with_the_store(self) -> tuple[str, ...]:
        """The store's database, which is the last-resource sink's."""
        sinks = self.world.sinks.items()
        return ("store", *(name for name, sink in sinks if sink.kind is SinkKind.LAST_RESOURCE))

    @property
    def _elsewhere(self) -> tuple[str, ...]:
        return tuple(name for name in self.world.sinks if name not in self._with_the_store)
