"""The text of a plan: what would mend the destinations of a pipeline, for somebody to read and to run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from onefold.core import OnefoldError, Sink
from onefold.core.contract import Repeatable
from onefold.core.values.plain import plain
from onefold.sinks.kafka import KafkaSink
from onefold.sinks.postgres import PostgresSink
from onefold.spark.verify.comparing.wrong_rows import WrongRows, shown
from onefold.spark.verify.relations import is_table

if TYPE_CHECKING:
    from onefold.sinks.sql import SqlSink

_HEAD = """\
-- What would mend pipeline {name!a}, by `onefold verify` at {now}. Nothing of it was run.
-- Read it first. The pipeline has to stand still from before that verify until this has run; then verify again."""
_OF_TABLE = """\
-- An UPDATE leaves columns alone that the pipeline does not write. A row that is deleted and inserted again, since its
-- key had too few or too many, has their defaults."""
_DELETING = "-- Rows of no record are deleted: those of before the pipeline, too."
_SPARED = """\
-- Others write into this table: {others}.
-- Where a key has more rows than it is to have, some may be theirs, and none is deleted. These are such keys:"""
_OF_TOPIC = """\
-- A topic cannot be mended in place, and a pipeline into a topic cannot read records again. Write what lacks
-- yourself, or give the pipeline, with another topic, a name of its own. These keys are wrong:"""
_OF_HBASE = """\
-- What is unexpected has to be deleted by its row key; the others are mended by records that come again: {by}
-- These keys are wrong:"""


def plan_text(named: str, name: str, sinks: Sequence[Sink], wrong: Mapping[Sink, WrongRows]) -> str:
    """Of a pipeline with these sinks that a command calls `named`."""
    lines = [_HEAD.format(name=name, now=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%SZ}")]
    for sink, of in wrong.items():
        count = of.keys.num_rows if of.keys is not None else 0
        lines += ["", f"-- Sink {sink.name!a}: {count + of.more:,} keys are wrong."]
        if of.because:
            lines.append(f"-- No statement mends it: {of.because}.")
        elif count:
            lines += _of_table(sink, of, name, sinks) if is_table(sink) else _of_keys(sink, of, named)
        if of.more:
            lines.append(
                f"-- {of.more:,} more wrong keys are not in this plan: run it, verify again, and write another."
            )
    return "\n".join(lines) + "\n"


def _of_table(sink: PostgresSink | SqlSink, wrong: WrongRows, name: str, sinks: Sequence[Sink]) -> Iterator[str]:
    try:
        if isinstance(sink, PostgresSink):
            from onefold.spark.verify.mending import postgres_statements

            wrong.beside = _beside(sink, sinks, postgres_statements.others(sink, name))
            made = [*postgres_statements.statements(sink, wrong)]
        else:
            from onefold.spark.verify.mending import sql_statements

            wrong.beside = _beside(sink, sinks, sql_statements.others(sink, name))
            made = [*sql_statements.statements(sink, wrong)]
    except OnefoldError as error:
        yield from ("-- " + line for line in f"No statement mends it: {error.message}".splitlines())
        return
    yield from (_OF_TABLE, *([] if wrong.beside else [_DELETING]), "BEGIN;", *made, "COMMIT;")
    if (spared := wrong.spared()).num_rows:
        yield _SPARED.format(others=plain(", ".join(wrong.beside)))
        yield from _keys(spared, wrong.key)


def _beside(sink: PostgresSink | SqlSink, sinks: Sequence[Sink], others: Sequence[str]) -> list[str]:
    """Who else writes into the table: other pipelines, and other sinks of this one."""
    mine = sink.settings
    same = (each.settings for each in sinks if is_table(each) and each is not sink)
    siblings = [f"sink {each.name!r}" for each in same if (each.url, each.target) == (mine.url, mine.target)]
    return [*(f"pipeline {other!r}" for other in others), *siblings]


def _of_keys(sink: Sink, wrong: WrongRows, named: str) -> Iterator[str]:
    yield _OF_TOPIC if isinstance(sink, KafkaSink) else _OF_HBASE.format(by=_again(sink, wrong, named))
    assert wrong.keys is not None
    yield from _keys(wrong.keys, wrong.key)


def _keys(keys: pa.Table, names: Sequence[str]) -> Iterator[str]:
    for row in shown(keys):
        said = ", ".join(f"{name}={row[name]}" for name in names)
        yield f"--   {plain(said)} (expected {row['__expected']}, found {row['__actual']})"


def _again(sink: Sink, wrong: WrongRows, named: str) -> str:
    """How records come again, by positions of the source."""
    if not (isinstance(sink, Repeatable) and sink.absorbs_repeats()):
        return f"all of them, once its table is empty (`truncate`)\n--   onefold positions {named} --reset"
    first: dict[tuple[str, int], int] = {}
    for topic, partition, offset in (place for each in wrong.places.values() for place in each.at):
        first[topic, partition] = min(offset, first.get((topic, partition), offset))
    if not first:
        return f"where they are nobody can tell\n--   onefold positions {named} --set earliest"
    sets = " ".join(f"--set {topic}:{partition}={offset}" for (topic, partition), offset in sorted(first.items()))
    some = " (of some of the keys: there are more)" if any(each.is_cut for each in wrong.places.values()) else ""
    return f"all from here on{some}\n--   onefold positions {named} {sets}"
