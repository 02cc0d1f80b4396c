"""What befalls a simulated world from outside, and what its operator does about the errors that follow.

Whoever restores an older copy, deletes a checkpoint or renames a sink meets an error that says what to do. The operator
does what it says, once, and then everything must come right.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from onefold.core.checks import present
from onefold.core.contract import EpochState, SinkKind
from onefold.core.errors import BadRecord, CheckpointMismatch, ConfigError, Damaged, DataLoss, Fenced
from onefold.core.positions import Positions, Relation
from onefold.core.testing.simulator.faults import MOVES, RIVALS, TRIALS, Fault
from onefold.core.testing.simulator.host import Host
from onefold.core.testing.simulator.models import ModelSink
from onefold.core.testing.simulator.scene import Scene

# What errors say whose cure is one start with, or without, a sink.
OTHER_SINKS = ("out of this one start", "put it back under its old name", "Start once with the sinks")
ADOPTIONS = (Fault.OLD_STORE_ADOPTED, Fault.NEW_STORE_ADOPTED)


class Operator:
    """Holds the copies, and the settings of the next start."""

    def __init__(self, world: Scene) -> None:
        self.world = world
        self.mishap: Fault | None = None
        self.backup: dict[str, Any] | None = None
        self.newer: dict[str, Any] | None = None
        self.newer_store: dict[str, Any] | None = None  # from before an older database came into use
        self.expects_damage = self.bad_record = self.cuts_anew = self.topic_is_new = False
        self.from_ledger = self.adopts = self.plan_was_replaced = self.calls_twice = False
        self.starting_offsets = "earliest"
        self.accepts_damage: int | None = None
        self.has_dead_letters = self._is_interlude = False
        self.are_letters_astray = False  # some are of a history that is gone: they stay out
        self.home: Host | None = None  # where the pipeline ran before another host began to
        self.has_woken = False  # something that slept, and may have planned a batch in its successor's checkpoint
        self.move_to: Fault | None = None  # which way the positions are to be moved, by the next life
        self._moves_later: Fault | None = None
        self.input = "first"
        self._batch_step = 1
        self._has_tried = False

    @property
    def on_trial(self) -> bool:
        """Whether the next life only starts, with settings that somebody tries."""
        return self.mishap in TRIALS

    def ends_trial(self) -> bool:
        """The settings that were tried missed nothing yet: put them back. False if there was no trial, and nothing that
        was waiting for the pipeline to stop."""
        if self.move_to is not None or self._moves_later is not None:
            self.move_to, self._moves_later = self._moves_later, None
            if self.move_to is Fault.MOVED_BACK:
                self._empty()
            return True
        missed = [r.epoch for r in self.world.store.history() if r.state is EpochState.COMPLETE]
        if self.mishap is Fault.SINK_ADDED and missed:
            self.world.complaints.append(f"a sink was let in that missed epochs {missed}")
        was, self.mishap = self.on_trial, None if self.on_trial else self.mishap
        return self._ends_interlude() or was

    def _ends_interlude(self) -> bool:
        was, self._is_interlude = self._is_interlude, False
        if was:
            self.has_dead_letters = not self.has_dead_letters
        return was

    def configured_sinks(self) -> dict[str, ModelSink]:
        late = () if self.has_dead_letters else self.world.late
        sinks = {name: sink for name, sink in self.world.sinks.items() if name not in late}
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
        world = self.world
        if mishap is Fault.DEAD_LETTERS:
            self.has_dead_letters, self._is_interlude = not self.has_dead_letters, False
            if self.mishap is Fault.OLD_STORE:
                self.are_letters_astray = True
                return  # nobody knows of that yet
        self.mishap, self.newer = mishap, self._copy()
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
                world.checkpoint.clear()
            case Fault.OTHER_CUT:
                self.cuts_anew = True
                self._forget_plan()
            case Fault.OTHER_CUT_NEW_CHECKPOINT:
                self.cuts_anew = True
                world.checkpoint.clear()
            case Fault.BATCHES_SKIPPED:
                self._batch_step = 3
            case Fault.TOPIC_ANEW:
                self.topic_is_new = True
            case Fault.OTHER_START:
                self.starting_offsets = "another"
            case Fault.FROM_LEDGER:
                self.from_ledger = True
            case Fault.SECOND_CALL:
                self.calls_twice = True

    def stop_to_move(self, fault: Fault) -> None:
        """Somebody believes that the pipeline stands, and moves its positions."""
        self.mishap, self.move_to, self.newer = fault, fault, self._copy()
        if fault is Fault.MOVED_BACK:
            self._empty()

    def moves_from(self, stands: Positions, end: Positions) -> Positions | None:
        """Where the positions are to go: one record is passed over, or all are read again but the first. None where
        there is nothing to pass over, or to go back for. The topics end at `end`."""
        begin = Counter({name: int(at) for name, at in present(self.world.first_start, "it froze them").items})
        if self.move_to is Fault.MOVED_BACK:
            back = Positions.of(begin + Counter({"t/0": 1}))
            return back if back.relation_to(stands) is Relation.BEHIND else None
        ahead = Positions.of(Counter({name: int(at) for name, at in stands.items}) + Counter({"t/1": 1}))
        return ahead if end.relation_to(ahead) in (Relation.AHEAD, Relation.SAME) else None

    def _empty(self) -> None:
        for sink in self.world.sinks.values():
            sink.empty()

    def replaces_plan(self) -> None:
        """The newest batch is planned to end elsewhere: as a zombie of the query saw it, before its successor did."""
        checkpoint = self.world.checkpoint
        if not checkpoint.offsets or max(checkpoint.offsets) in checkpoint.commits:
            return
        newest = max(checkpoint.offsets)
        begin = checkpoint.offsets.get(newest - 1, checkpoint.begun)
        end = Positions.of({**dict(checkpoint.offsets[newest].items), "t/0": 2, "t/1": 2})
        if begin is None or end.relation_to(begin) is not Relation.BEHIND:
            checkpoint.replace(newest, end)
            self.plan_was_replaced = True

    def starts_again(self, error: Fenced) -> bool:
        """A store that knows no such pipeline fences too: nobody has retired it, so it is to go on."""
        return self.mishap is Fault.STORE_GOES_BACK and "knows no such pipeline" in str(error)

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
        if self.move_to is not None and isinstance(error, ConfigError):
            if "must run again" in str(error):  # the pipeline finishes it first
                self.move_to, self._moves_later = None, self.move_to
            elif "has records at and after" in str(error):
                self._empty()
            else:
                return False
            return True
        if isinstance(error, Damaged) and (self.expects_damage or self.mishap is Fault.OLD_SINK):
            return self._makes_good()
        if self.calls_twice and isinstance(error, ConfigError):
            self.calls_twice, self.expects_damage = False, True
            return True
        if self.plan_was_replaced and isinstance(error, CheckpointMismatch | DataLoss):
            if "start the query again" not in str(error):
                self.world.checkpoint.clear()
                self.from_ledger = True
                self.plan_was_replaced = False
            return True
        if not isinstance(error, CheckpointMismatch | DataLoss | ConfigError):
            return False
        if self.world.late and "another sink in its place" in str(error):
            self.has_dead_letters, self.are_letters_astray = False, True
            return True
        if self.world.late and any(words in str(error) for words in OTHER_SINKS):
            return self._starts_once_otherwise()
        if isinstance(error, CheckpointMismatch) and self.mishap in RIVALS and self.home is not None:
            self._goes_on(self.home, error)
            return True
        if self.newer is None or (self.mishap in MOVES and not self.has_woken):
            return False
        newer, mishap = self.newer, self.mishap
        if mishap is Fault.STORE_GOES_BACK and not self._has_tried:
            self._has_tried = True  # as the error says: start again, and hear what can be done
            return True
        if mishap in ADOPTIONS and not self.adopts:
            self.adopts = self.from_ledger = True
            self.world.checkpoint.clear()
            return True
        match mishap:
            case Fault.OLD_STORE if self.world.late and not self.has_dead_letters and isinstance(error, DataLoss):
                # It goes on with the older copy, as the error allows.
                self.world.checkpoint.clear()
                self.from_ledger = self.are_letters_astray = True
                return True
            case (
                Fault.OLD_STORE
                | Fault.OLD_STORE_ADOPTED
                | Fault.STORE_GOES_BACK
                | Fault.NEW_STORE
                | Fault.NEW_STORE_ADOPTED
            ):
                self.adopts = self.from_ledger = False
                self._ends_interlude()
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
            case Fault.OTHER_START:
                self.starting_offsets = "earliest"
            case Fault.FROM_LEDGER:
                self.from_ledger = False
            case Fault.SINK_REMOVED | Fault.SINK_ADDED:
                pass  # put back as it was
            case _:
                # Where nothing is on record, with all that is empty; else from where the ledger stands.
                self.world.checkpoint.clear()
                facts = self.world.store.facts("model")
                self.from_ledger = facts.last is not None or bool(facts.unfinished)
        self.mishap = self.newer = None
        return True

    def _starts_once_otherwise(self) -> bool:
        """One start with, or without, the sink for dead letters, as the error says; then as it was to be."""
        if self._is_interlude:
            return False
        self.has_dead_letters, self._is_interlude = not self.has_dead_letters, True
        return True

    def _goes_on(self, home: Host, error: CheckpointMismatch) -> None:
        """The other host was refused: it adopts the destination, or is given up. Where the adoption was refused, the
        first host takes back what may be bound to the other one; else it never noticed."""
        if self.mishap is Fault.RIVAL_ADOPTED and not self.adopts:
            self.adopts, self.from_ledger = True, "starting_offsets='ledger'" in str(error)
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
            checkpoint.forget(batch)

    def _copy(self) -> dict[str, Any]:
        world = self.world
        return {
            "checkpoint": world.checkpoint.backup(),
            "store": world.store.backup(),
            **{name: sink.backup() for name, sink in world.sinks.items()},
        }

    def _restore(self, source: dict[str, Any], *names: str) -> None:
        for name in names:
            if name == "checkpoint":
                self.world.checkpoint.restore(source[name])
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
