"""`onefold sinks`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Annotated

import typer

from onefold.cli.arguments import Named, Yes
from onefold.core import ConfigError, EpochRecord
from onefold.core.moves import MoveNote
from onefold.core.protocol.misfits import check_resolved
from onefold.core.store.checkpoint_store import CheckpointStore
from onefold.operate.stopped import Stopped, somebody

__all__ = ["sinks"]


def sinks(
    named: Named,
    apply: Annotated[bool, typer.Option("--apply", help="Have the pipeline go on with the pipeline's sinks.")] = False,
    renamed: Annotated[
        list[str] | None, typer.Option(help="NEW=OLD: this sink had that name, and goes on with its rows.")
    ] = None,
    why: Annotated[str, typer.Option(help="The reason, which is kept with the change.")] = "",
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Also where it may be running: FENCES its driver if it is alive.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Show how the pipeline's sinks differ from those of the last epoch; with --apply, while the pipeline is stopped,
    have it go on with them."""
    from onefold.pipeline import read

    pipeline = read(named)
    with closing(CheckpointStore(pipeline.store_url, lock_timeout_s=10)) as store:
        stopped = Stopped(pipeline, store, "Nothing was changed")
        facts = stopped.facts()
        last = check_resolved(pipeline.name, facts)
        names = [sink.name for sink in pipeline.everyone]
        pairs = _pairs(renamed or (), names, last)
        added = [name for name in names if name not in last.sinks]
        for line in _plan(names, last, dict(pairs)):
            stopped.say(line)
        if {*names} == {*last.sinks}:
            return
        if not apply:
            stopped.say("the next start is refused until they agree, or until --apply has changed the record")
            return
        if not take_over:
            stopped.refuse_running(facts)
        stopped.say(f"{stopped.of_last(facts)}; a driver that lives after all is fenced, and ends with exit code 73")
        if not yes:
            typer.confirm("Have the pipeline go on with these sinks?", abort=True)
        stopped.refuse_changed(facts)
        with closing(stopped.session(added)) as session:
            session.take_over()
            record = session.change_sinks(MoveNote(somebody(), why, renamed=pairs))
        stopped.say(f"changed, by epoch {record.epoch}: pipeline {pipeline.name} goes on with {', '.join(names)}")


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


def _plan(names: Sequence[str], last: EpochRecord, renamed: dict[str, str]) -> Iterator[str]:
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
