"""`onefold positions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from onefold.cli.arguments import Named, Yes
from onefold.core import ConfigError, EpochRecord, Positions
from onefold.core.moves import MoveNote, Repeats
from onefold.core.operations.moving import standing
from onefold.core.protocol.effects import StoreFacts
from onefold.core.protocol.misfits import check_movable, check_stateless, would_double
from onefold.core.store.checkpoint_store import CheckpointStore
from onefold.core.values.plain import shown_url
from onefold.operate.positions import MovePlan, planned
from onefold.operate.stopped import Stopped, somebody

if TYPE_CHECKING:
    from onefold.core.job.move_session import MoveSession

__all__ = ["positions"]

MOVES_SHOWN = 5


def positions(
    named: Named,
    to: Annotated[
        list[str] | None,
        typer.Option("--set", help="orders:0=17 (repeat it), or earliest, latest, at=2026-11-20T00:00:00Z for all."),
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="To the first records that are left: --set earliest.")] = False,
    why: Annotated[str, typer.Option(help="The reason, which is kept with the move.")] = "",
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Also where it may be running: FENCES its driver if it is alive.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Show where a pipeline stands; or move its positions, while it is stopped: shows what would happen, and asks."""
    from onefold.pipeline import read

    if to and reset:
        raise ConfigError("options-conflict", "give --set or --reset, not both: --reset is --set earliest")
    pipeline, wanted = read(named), ["earliest"] if reset else to
    with ExitStack() as stack:
        store = stack.enter_context(closing(CheckpointStore(pipeline.store_url, lock_timeout_s=10)))
        command = _Positions(pipeline, store, "Nothing was moved")
        if wanted:
            command.move(wanted, why, take_over, yes)
        else:
            command.show()


class _Positions(Stopped):
    """One call of the command, on one pipeline."""

    def show(self) -> None:
        """For each partition the recorded end, what Kafka has, and where the next start begins."""
        from onefold.sources.kafka import lag

        facts = self.facts()
        stands = standing(facts)
        if stands is None:
            self.say(f"pipeline {self.name} was never started: its source's starting_offsets say where")
            return
        begins = stands if self.checkpoint.is_there or self.checkpoint.is_elsewhere else facts.origin or facts.frozen
        next_start = dict((begins or stands).items)
        table = Table("partition", "written up to", "Kafka has", "behind", "next start", box=None)
        for each in lag(self.pipeline.topic, stands):
            name = f"{each.topic}/{each.partition}"
            has = f"{each.first:,} to {each.log_end:,}"
            table.add_row(name, f"{each.position:,}", has, f"{each.behind:,}", f"{int(next_start.get(name, 0)):,}")
        self.console.print(table)
        self.say(self.of_last(facts))
        if begins != stands:
            self.say(
                f"there is no checkpoint at {self.checkpoint.path}: the next start begins as shown, and passes over"
                ' what was written only if it cuts batches as before. starting_offsets = "ledger" begins where it was'
                " written up to"
            )
        for record in facts.unfinished:
            self.say(f"epoch {record.epoch} is {record.state.value}: a driver works at it, or the next start does")
        for record in self.store.moves(self.name)[-MOVES_SHOWN:]:
            note, at = MoveNote.of(record), datetime.fromtimestamp(record.timestamp_ms / 1000, UTC)
            because = f": {note.why}" if note.why else ""
            what = "sinks changed" if record.range.is_empty else "moved"
            self.say(f"{what} by epoch {record.epoch}, {at:%Y-%m-%d %H:%M:%S} UTC, by {note.by}{because}")

    def move(self, wanted: Sequence[str], why: str, take_over: bool, yes: bool) -> None:
        """Plan, ask, fence, look again, move."""
        facts, moves = self.facts(), self.store.moves(self.name)
        if not take_over:
            self.refuse_running(facts)
        plan = self._planned(facts, moves, wanted)
        self._show(plan, facts)
        if not yes:
            typer.confirm("Move the positions?", abort=True)
        self.refuse_changed(facts)
        with closing(self.session()) as session:
            record = self._move(session, plan, wanted, MoveNote(somebody(), why), yes)
        self.say(f"moved, by epoch {record.epoch}: the next start of pipeline {self.name} begins there")
        if self.checkpoint.went_to is not None:
            self.say(f"the checkpoint is {self.checkpoint.went_to} now; nobody needs it any more")

    def _move(
        self, session: MoveSession, plan: MovePlan, wanted: Sequence[str], note: MoveNote, yes: bool
    ) -> EpochRecord:
        """Under the fence. Where a start finished an epoch that nobody had finished, the plan is another one."""
        session.check_targets()
        facts, moves = session.take_over()
        if standing(facts) != plan.stands:
            plan = self._planned(facts, moves, wanted)
            self.say("an epoch that was decided is finished now, so the plan is another one:")
            self._show(plan, facts)
            if not yes:
                typer.confirm("Move the positions?", abort=True)
        return session.move(plan.to, note)

    def _planned(self, facts: StoreFacts, moves: Sequence[EpochRecord], wanted: Sequence[str]) -> MovePlan:
        """Raises ConfigError where the positions cannot go there."""
        from onefold.sources.kafka import wanted_positions

        name, stands = self.name, standing(facts)
        check_stateless(name, self.pipeline.keeps_state or self.checkpoint.keeps_state)
        to = wanted_positions(self.pipeline.topic, stands or Positions(), wanted).positions
        check_movable(name, stands, to)
        plan = planned(facts, moves, to, self._repeats())
        if doubled := plan.doubled():
            raise would_double(name, doubled[0])
        return plan

    def _repeats(self) -> Mapping[str, Repeats]:
        from onefold.core.job.move_session import repeats_in

        return {sink.name: repeats_in(sink, self.name) for sink in self.pipeline.everyone}

    def _show(self, plan: MovePlan, facts: StoreFacts) -> None:
        self.say(f"pipeline {self.name} is moved, as epoch {(facts.last.epoch if facts.last else 0) + 1}")
        table = Table("partition", "from", "to", "records passed over", "records again", box=None)
        for each in plan.partitions:
            table.add_row(each.name, f"{each.now:,}", f"{each.then:,}", f"{each.passed_over:,}", f"{each.again:,}")
        self.console.print(table)
        for line in plan.of_sinks([sink.name for sink in self.pipeline.everyone]):
            self.say(f"  {line}")
        if self.checkpoint.is_elsewhere:
            self.say(
                f"the checkpoint {shown_url(self.checkpoint.text)} is not on this machine: move it away before the next"
                " start"
            )
        elif self.checkpoint.is_there:
            self.say(f"the checkpoint {self.checkpoint.path} is set aside, under another name")
        self.say(f"{self.of_last(facts)}; a driver that lives after all is fenced, and ends with exit code 73")
