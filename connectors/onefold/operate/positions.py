"""Moves a stopped pipeline's positions, and changes its sinks: what that would do, and doing it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from onefold.core import ConfigError, EpochRecord, Positions
from onefold.core.moves import MoveNote, Repeats, come_again, count, passed_over
from onefold.core.protocol.effects import StoreFacts
from onefold.core.protocol.moving import chain_end
from onefold.core.protocol.request_checks import check_movable, check_stateless, would_double
from onefold.flow.writing import STATE
from onefold.operate.stopped import StoppedPipeline, somebody
from onefold.pipeline import Engine, Pipeline
from onefold.store.job.move_session import repeats_in

_AGAIN = {
    None: "no record comes to it twice",
    Repeats.NEW: "what it writes to is empty, and begins at the new positions",
    Repeats.ABSORBED: "records that come again change nothing, once they all have (upserts, row keys)",
    Repeats.DOUBLED: "records that come again would be there twice",
}


@dataclass(frozen=True, slots=True)
class PartitionMove:
    """One partition: its next offset now and then, how many records nobody is to process, and how many come again."""

    name: str
    now: int
    then: int
    passed_over: int
    again: int


@dataclass(frozen=True, slots=True)
class MovePlan:
    """`again`: what records that come again make of each sink that they come to; none of a sink without any."""

    stands: Positions
    to: Positions
    partitions: tuple[PartitionMove, ...]
    again: Mapping[str, Repeats]

    def doubled(self) -> list[str]:
        return [name for name, repeats in self.again.items() if repeats is Repeats.DOUBLED]

    def of_sinks(self, sinks: Sequence[str]) -> Iterator[str]:
        return (f"{name}: {_AGAIN[self.again.get(name)]}" for name in sinks)


def planned(facts: StoreFacts, moves: Sequence[EpochRecord], to: Positions, repeats: Mapping[str, Repeats]) -> MovePlan:
    """The plan of a pipeline that stands somewhere. `repeats`: what each sink makes of records that come again."""
    stands = chain_end(facts) or Positions()
    initial = facts.frozen or stands
    now, then = dict(stands.items), dict(to.items)
    passed, again = passed_over(initial, moves, stands, to), come_again(initial, moves, stands, to)
    partitions = tuple(
        PartitionMove(
            name,
            int(now.get(name, 0)),
            int(then.get(name, 0)),
            count({name: passed.get(name, [])}),
            count({name: again.get(name, [])}),
        )
        for name in sorted(now.keys() | then.keys())
    )
    coming = {sink: count(come_again(initial, moves, stands, to, sink)) for sink in repeats}
    return MovePlan(stands, to, partitions, {sink: each for sink, each in repeats.items() if coming[sink]})


def plan_to(stopped: StoppedPipeline, facts: StoreFacts, moves: Sequence[EpochRecord], to: Positions) -> MovePlan:
    """Asks the sinks' servers. Raises ConfigError where the positions cannot go there."""
    check_movable(stopped.name, chain_end(facts), to)
    repeats = {sink.name: repeats_in(sink, stopped.name) for sink in stopped.pipeline.everyone}
    plan = planned(facts, moves, to, repeats)
    if doubled := plan.doubled():
        raise would_double(stopped.name, doubled[0])
    return plan


# Shows a plan, and asks: raises where the answer is no. Asked again, under the fence, where the plan is another one.
Ask = Callable[[MovePlan, StoreFacts, bool], None]


def move(stopped: StoppedPipeline, wanted: Sequence[str], why: str, take_over: bool, ask: Ask) -> EpochRecord:
    """Plan, ask, fence, look again, move. Raises ConfigError where the positions cannot go there, or the pipeline may
    be running."""
    facts = stopped.facts()
    if not take_over:
        stopped.refuse_running()
    plan = _planned(stopped, facts, stopped.store.moves(stopped.name), wanted)
    ask(plan, facts, False)
    stopped.refuse_changed(facts)
    with closing(stopped.session()) as session:
        session.check_targets()
        facts, moves = session.take_over()
        if chain_end(facts) != plan.stands:  # an epoch that nobody had finished is finished now
            plan = _planned(stopped, facts, moves, wanted)
            ask(plan, facts, True)
        return session.move(plan.to, MoveNote(somebody(), why))


def _planned(
    stopped: StoppedPipeline, facts: StoreFacts, moves: Sequence[EpochRecord], wanted: Sequence[str]
) -> MovePlan:
    from onefold.sources.kafka import wanted_positions

    _refuse_in_flight(stopped, facts)
    check_stateless(stopped.name, stopped.pipeline.keeps_state or stopped.checkpoint.keeps_state)
    to = wanted_positions(stopped.pipeline.topic, chain_end(facts) or Positions(), wanted).positions
    return plan_to(stopped, facts, moves, to)


def _refuse_in_flight(stopped: StoppedPipeline, facts: StoreFacts) -> None:
    from onefold.engine.state import handles_of, refuse_in_flight  # the engine, which pipelines on Spark do without

    refuse_in_flight(stopped.name, handles_of(facts.last), stopped.nothing)


def without_state(pipeline: Pipeline, record: EpochRecord) -> EpochRecord:
    """The epoch with the user's sinks alone: what the engine keeps for the flow is one more for the protocol."""
    if not isinstance(pipeline.runtime, Engine):
        return record
    return replace(record, sinks=tuple(name for name in record.sinks if name != STATE))


def check_sinks_changeable(pipeline: Pipeline) -> None:
    """Raise ConfigError where the engine keeps state: its epochs go on with the sinks' only."""
    pipeline.check_positions()
    if _keeps_state(pipeline):
        raise ConfigError(
            "sinks-beside-state",
            f"pipeline {pipeline.name!r} keeps state on the engine, and its sinks cannot be changed yet: an epoch"
            " without its state would come after those that have it. Nothing was changed. Put the sinks back as they"
            " were; or begin anew with the new ones, by `onefold reset`",
        )


def _keeps_state(pipeline: Pipeline) -> bool:
    return isinstance(pipeline.runtime, Engine) and pipeline.keeps_state


def change_sinks(
    stopped: StoppedPipeline, facts: StoreFacts, added: Sequence[str], renamed: tuple[tuple[str, str], ...], why: str
) -> EpochRecord:
    """Have the pipeline go on with its sinks of today, `added` among them. Raises ConfigError where it went on since
    these facts were read, or has records in flight."""
    stopped.refuse_changed(facts)
    _refuse_in_flight(stopped, facts)
    with closing(stopped.session(added=added)) as session:
        session.endpoints = stopped.pipeline.flow.endpoints
        session.take_over()
        return session.change_sinks(MoveNote(somebody(), why, renamed=renamed))
