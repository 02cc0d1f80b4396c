"""`onefold positions` and `onefold sinks`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from onefold.cli.console import Named, TakeOver, Yes, confirm, say, shown, table_console
from onefold.core import ConfigError, EpochRecord, OnefoldError, Positions
from onefold.core.moves import MoveNote
from onefold.core.protocol.effects import StoreFacts
from onefold.core.protocol.moving import chain_end
from onefold.core.protocol.request_checks import check_resolved
from onefold.core.values.plain import counted, plain, shown_url
from onefold.store.journal import StoreJournal

if TYPE_CHECKING:
    from onefold.operate.lags import Lag
    from onefold.operate.positions import MovePlan
    from onefold.operate.stopped import StoppedPipeline

MOVES_SHOWN = 5
_WITHIN_S = 10.0  # the brokers of a topic answer, or are away


def positions(
    named: Named,
    to: Annotated[
        list[str] | None,
        typer.Option("--set", help="orders:0=17 (repeat it), or earliest, latest, at=2026-11-20T00:00:00Z for all."),
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="To the first records that are left: --set earliest.")] = False,
    from_spark: Annotated[
        str | None,
        typer.Option(
            metavar="CHECKPOINT",
            help="A pipeline that was never started begins where this query of Spark's own stopped.",
        ),
    ] = None,
    from_group: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP", help="A pipeline that was never started begins where this consumer group has committed."
        ),
    ] = None,
    why: Annotated[str, typer.Option(help="The reason, which is kept with the move.")] = "",
    take_over: TakeOver = False,
    yes: Yes = False,
) -> None:
    """Show where a pipeline stands; or move its positions, while it is stopped: shows what would happen, and asks."""
    from onefold.operate.positions import move
    from onefold.operate.stopped import StoppedPipeline
    from onefold.pipeline import read

    if sum(map(bool, (to, reset, from_spark, from_group))) > 1:
        raise ConfigError("options-conflict", "give one of --set, --reset, --from-spark and --from-group")
    if why and (from_spark or from_group):
        raise ConfigError("options-conflict", "--why is kept with a move, and a first start is none: leave it out")
    pipeline, wanted = read(named, is_stopped=True), ["earliest"] if reset else to
    pipeline.check_positions()
    with closing(StoppedPipeline(pipeline, "Nothing was moved")) as stopped:
        if from_spark or from_group:
            _begin_after(stopped, from_spark, from_group, yes)
            return
        if not wanted:
            _show(stopped)
            return

        def ask(plan: MovePlan, facts: StoreFacts, is_another: bool) -> None:
            if is_another:
                say("an epoch that was decided is finished now, so the plan is another one:")
            _show_plan(stopped, plan, facts)
            confirm("Move the positions?", yes)

        with pipeline.in_its_words():
            record = move(stopped, wanted, why, take_over, ask)
        say(f"moved, by epoch {record.epoch}: the next start of pipeline {pipeline.name} begins there")
        if stopped.checkpoint.went_to is not None:
            say(f"the checkpoint is {stopped.checkpoint.went_to} now; nobody needs it any more")


def sinks(
    named: Named,
    apply: Annotated[bool, typer.Option("--apply", help="Have the pipeline go on with the pipeline's sinks.")] = False,
    renamed: Annotated[
        list[str] | None, typer.Option(help="NEW=OLD: this sink had that name, and goes on with its rows.")
    ] = None,
    why: Annotated[str, typer.Option(help="The reason, which is kept with the change.")] = "",
    take_over: TakeOver = False,
    yes: Yes = False,
) -> None:
    """Show how the pipeline's sinks differ from those of the last epoch; with --apply, while the pipeline is stopped,
    have it go on with them."""
    from onefold.operate.positions import change_sinks, check_sinks_changeable, without_state
    from onefold.operate.stopped import StoppedPipeline
    from onefold.pipeline import read

    pipeline = read(named)
    with closing(StoppedPipeline(pipeline, "Nothing was changed")) as stopped:
        facts = stopped.facts()
        last = without_state(pipeline, check_resolved(pipeline.name, facts))
        names = [sink.name for sink in pipeline.everyone]
        pairs = _pairs(renamed or (), names, last)
        for line in _changes(names, last, dict(pairs)):
            say(line)
        if {*names} == {*last.sinks}:
            return
        if not apply:
            say("the next start is refused until they agree, or until --apply has changed the record")
            return
        check_sinks_changeable(pipeline)
        if not take_over:
            stopped.refuse_running()
        say(_fencing(facts))
        confirm("Have the pipeline go on with these sinks?", yes)
        record = change_sinks(stopped, facts, [name for name in names if name not in last.sinks], pairs, why)
        say(f"changed, by epoch {record.epoch}: pipeline {pipeline.name} goes on with {', '.join(names)}")


def _show(stopped: StoppedPipeline) -> None:
    """For each partition the recorded end, what its source has, and where the next start begins."""
    facts, checkpoint = stopped.facts(), stopped.checkpoint
    stands = chain_end(facts)
    if stands is None:
        say(f"pipeline {stopped.name} has written no epoch yet")
        return
    goes_on = not checkpoint.GOES_ON or checkpoint.is_there or checkpoint.is_elsewhere
    begins = stands if goes_on else facts.origin or facts.frozen
    next_start, lags = dict((begins or stands).items), _lags(stopped, stands)
    table = Table("partition", "written up to", "the source has", "behind", "next start", box=None)
    for name, position in {**dict.fromkeys(lags, 0), **dict(stands.of_records().items)}.items():
        table.add_row(shown(name), _at(position), *_of_source(position, lags.get(name)), _at(next_start.get(name, 0)))
    Console(soft_wrap=True, emoji=False).print(table)
    say(_of_last(facts))
    if begins != stands:
        say(
            f"there is no checkpoint at {checkpoint.path}: the next start begins as shown, and passes over what was"
            ' written only if it cuts batches as before. starting_offsets = "ledger" begins where it was written up to'
        )
    for record in facts.unfinished:
        say(f"epoch {record.epoch} is {record.state.value}: a driver works at it, or the next start does")
    for record in stopped.store.moves(stopped.name)[-MOVES_SHOWN:]:
        note, at = MoveNote.of(record), datetime.fromtimestamp(record.timestamp_ms / 1000, UTC)
        because = f": {note.why}" if note.why else ""
        what = "sinks changed" if record.range.is_empty else "moved"
        say(f"{what} by epoch {record.epoch}, {at:%Y-%m-%d %H:%M:%S} UTC, by {note.by}{because}")


def _at(position: int | str) -> str:
    """Those of topics are numbers."""
    return f"{position:,}" if isinstance(position, int) else shown(position)


def _of_source(position: int | str, lag: Lag | None) -> tuple[str, str]:
    """What it has, of a topic, and how much of it is not written."""
    if lag is None:
        return "?", "?"
    if lag.headroom is None or not isinstance(position, int):
        return "", counted(lag.behind, lag.unit)
    return f"{position - lag.headroom:,} to {position + lag.behind:,}", f"{lag.behind:,}"


def _lags(stopped: StoppedPipeline, stands: Positions) -> dict[str, Lag]:
    """By partition; a source that does not answer is told, and the store's facts are shown without it."""
    from onefold.operate.lags import Lags

    found: dict[str, Lag] = {}
    with closing(Lags(stopped.pipeline, partial(StoreJournal, stopped.store, stopped.name), _WITHIN_S)) as lags:
        for source in stopped.pipeline.flow.sources():
            try:
                found |= {lag.partition: lag for lag in lags.of(source, stands)}
            except OnefoldError as error:
                typer.echo(f"how far it is behind {plain(source.name)} is not known: {error}", err=True)
    return found


def _begin_after(stopped: StoppedPipeline, checkpoint: str | None, group: str | None, yes: bool) -> None:
    from onefold.operate.beginning import begin_after_group, begin_after_query

    def ask(begin: Positions) -> None:
        say(f"pipeline {stopped.name} was never started; its first start begins")
        table = Table("partition", "at", box=None)
        for name, at in begin.items:
            table.add_row(shown(name), f"{int(at):,}")
        table_console().print(table)
        confirm("Have it begin there?", yes)

    if checkpoint:
        begin_after_query(stopped, checkpoint, ask)
    elif group:
        begin_after_group(stopped, group, ask)
    say(f"settled: the first start of pipeline {stopped.name} begins there; leave its starting_offsets as they are")


def _show_plan(stopped: StoppedPipeline, plan: MovePlan, facts: StoreFacts) -> None:
    say(f"pipeline {stopped.name} is moved, as epoch {(facts.last.epoch if facts.last else 0) + 1}")
    table = Table("partition", "from", "to", "records passed over", "records again", box=None)
    for each in plan.partitions:
        table.add_row(each.name, f"{each.now:,}", f"{each.then:,}", f"{each.passed_over:,}", f"{each.again:,}")
    Console(soft_wrap=True).print(table)
    for line in plan.of_sinks([sink.name for sink in stopped.pipeline.everyone]):
        say(f"  {line}")
    checkpoint = stopped.checkpoint
    if checkpoint.GOES_ON and checkpoint.is_elsewhere:
        at = shown_url(checkpoint.place)
        say(f"the checkpoint {at} is not on this machine: move it away before the next start")
    elif checkpoint.GOES_ON and checkpoint.is_there:
        say(f"the checkpoint {checkpoint.path} is set aside, under another name")
    say(_fencing(facts))


def _of_last(facts: StoreFacts) -> str:
    if facts.last is None:
        return "no epoch was written yet"
    ago_s = max(0, time.time() - facts.last.timestamp_ms / 1000)
    return f"its last epoch, {facts.last.epoch}, was begun {ago_s:,.0f} s ago"


def _fencing(facts: StoreFacts) -> str:
    return f"{_of_last(facts)}; a driver that lives after all is fenced, and ends with exit code 73"


def _pairs(renamed: Sequence[str], names: Sequence[str], last: EpochRecord) -> tuple[tuple[str, str], ...]:
    """New names with the old ones. Raises ConfigError for what is no new name, or was no name."""
    pairs = []
    for text in renamed:
        new, _, old = text.partition("=")
        if new not in names or new in last.sinks or old not in last.sinks or old in names:
            raise ConfigError(
                "option-value",
                f"--renamed {text!r} must be NEW=OLD: a sink of the pipeline that the last epoch did not have, and"
                f" one that only the last epoch had. It had {', '.join(last.sinks)}; the pipeline has"
                f" {', '.join(names)}",
            )
        pairs.append((new, old))
    return tuple(pairs)


def _changes(names: Sequence[str], last: EpochRecord, renamed: dict[str, str]) -> Iterator[str]:
    for name in names:
        if name in last.sinks:
            yield f"{name}: goes on"
        elif name in renamed:
            yield f"{name}: goes on with the rows of {renamed[name]}, under its new name"
        else:
            yield f"{name}: new, and begins after epoch {last.epoch}, where the pipeline stands"
    for name in last.sinks:
        if name not in names and name not in renamed.values():
            yield f"{name}: removed. Its rows stay; onefold txn prune removes its bookkeeping afterwards"
