"""Compare what the source holds, up to the ledger's positions, with what the destination holds, key by key.

The verdict is the named invariants' (`onefold.core.invariants`), on this comparison and on what store and destination
say of themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from onefold.core import Committable, ConfigError, EpochRecord, EpochState, LedgerEntry, Positions, Sink
from onefold.core.invariants import ADOPTED, INVARIANTS, AtomicEpoch, Comparison, Evidence, verdicts
from onefold.core.positions import Range
from onefold.core.protocol.effects import StoreFacts
from onefold.core.source import unbounded
from onefold.core.waiting import Wait
from onefold.engine.state import handles_of, refuse_in_flight
from onefold.flow.processing.mechanisms import may_double, mechanism_of
from onefold.sinks.kafka import KafkaSink
from onefold.sinks.postgres import PostgresSink
from onefold.sources.kafka import KafkaSource
from onefold.spark.errors.failures import WorkerDied
from onefold.spark.flows.flow_writer import FlowWriter
from onefold.spark.formats.bounded_records import read_bad_records, splits_of
from onefold.spark.runtime.dataframe_columns import columns
from onefold.spark.runtime.workers import guarding
from onefold.spark.verify.comparing.comparison import compare
from onefold.spark.verify.comparing.wrong_rows import WrongRows
from onefold.spark.verify.origin import Due, SourceRecords
from onefold.spark.verify.relations import There, Verifiable, is_table, looked_at
from onefold.spark.verify.sink_comparison import Asked, compared, made_of, reading
from onefold.store.job.holding import Hold

if TYPE_CHECKING:
    from onefold.sinks.hbase import HBaseSink

# Where a record was, which is the key, and what it was.
LETTER_CONTENT = ("source_topic", "source_partition", "source_offset", "source_timestamp", "key", "value")
COMPLETED_S_MAX = 5.0
# Whether readers ever saw a part of an epoch, nobody can tell afterwards.
JUDGED = tuple(invariant for invariant in INVARIANTS if not isinstance(invariant, AtomicEpoch))


@dataclass(frozen=True, slots=True)
class Verification:
    """The comparison, and the violations of each invariant, by its name. `is_exact` is the verdict; with `may_double`
    it is of what is lost or changed alone, since rows may be there twice by that."""

    comparison: Comparison
    positions: Positions
    epochs: int
    invariants: dict[str, tuple[str, ...]]
    may_double: str = ""

    @property
    def is_exact(self) -> bool:
        return not any(self.invariants.values())


def verifiable(sink: Sink, key: Sequence[str]) -> Verifiable:
    """The sink, which verify can read. Raises ConfigError for another one, and where it needs a key and has none."""
    is_hbase = type(sink).__module__ == "onefold.sinks.hbase.sink"  # whose client need not be installed
    if not (is_table(sink) or isinstance(sink, KafkaSink) or is_hbase):
        raise ConfigError(
            "verify-unsupported",
            f"sink {sink.name!r} is a {type(sink).__name__}, whose rows verify cannot read: name others, --sink",
        )
    if is_table(sink) and not (key or key_of(sink)):
        raise ConfigError(
            "option-missing",
            f"sink {sink.name!r} appends, so which columns name a row has to be said: --key id",
        )
    return cast("Verifiable", sink)


def key_of(sink: Verifiable) -> tuple[str, ...]:
    """The columns by which the sink itself tells rows apart; none where it only appends."""
    if is_table(sink):
        return sink.settings.changes.key if sink.settings.changes is not None else ()
    return () if isinstance(sink, KafkaSink) else cast("HBaseSink", sink).settings.declared.row_key.names


def takes_key(sink: Verifiable) -> bool:
    """Whether its rows are told apart by columns that somebody else may name, and not by a key or ids of its own."""
    return sink.settings.delivery != "keyed" if isinstance(sink, KafkaSink) else not key_of(sink)


def verify(
    spark: SparkSession,
    flow: FlowWriter,
    sink: Verifiable,
    key: Sequence[str] = (),
    expect: str = "",
    mending: WrongRows | None = None,
) -> Verification:
    """Check one sink of a flow against its source. Writes no row (onefold's own tables are made where they are
    missing). Where the flow runs, its driver holds it between two epochs while its ledger is read and the sink is
    looked at. Kafka must still have all of its records.

    A row of HBase is known by its row key, and has what the sink's mode makes of all rows of that key. Of a
    sink that upserts into a table, the table is to have the newest version of each key, and `key` is its own; rows
    among a Postgres sink's dead letters are accounted for there. A topic is read as its readers see it (read_committed,
    without the repeats of a keyed one), and its records are told apart by their ids, or by `key`. A source is read with
    its `on_error`: a bad record is no loss where that skips it; where that makes dead letters, and these are in a
    table, the table has to have each of them once.

    With `expect`, a SELECT over the sources' rows, the sink is to have what that gives, in these columns, one row of
    each key where the sink has a key: the flow's own operators are not asked. Its views have the sources' names, and a
    single one is `source` as well; records of topics have `kafka_topic`, `kafka_partition` and `kafka_offset` beside
    their columns. `mending` takes the wrong keys, and what they are to have.
    """
    if (own := key_of(sink)) and key and {*key} != {*own}:
        raise ConfigError(
            "key-mismatch", f"the sink's rows are named by {', '.join(own)}: verify them by that key, not {key}"
        )
    asked = Asked(flow.name, sink, key or own, expect, mending)
    return once_more_guarded(spark, lambda: _verify(spark, flow, asked))


def once_more_guarded(spark: SparkSession, check: Callable[[], Verification]) -> Verification:
    """Where a worker dies of what a parser's library dies of, in workers that survive that."""
    try:
        return check()
    except WorkerDied:
        with guarding(spark):
            return check()


def _verify(spark: SparkSession, flow: FlowWriter, asked: Asked) -> Verification:
    sink, (made, names) = asked.sink, made_of(asked, flow.graph)
    sources = [_topic(flow, name, sink) for name in names]
    letters = {source.name: dead for source in sources if (dead := _letters_of(flow, source)) is not None}
    with ExitStack() as opened:  # what is looked at now stays so until it was compared
        hold = opened.enter_context(flow.held())
        _await_completed(flow)
        facts, history = flow.facts(), flow.history()
        if any(mechanism_of(epoch) == "transaction" for epoch in history):
            raise ConfigError(
                "mechanism-without-positions",
                f"pipeline {flow.name!r} has run with mechanism='transaction', whose epochs are of its sinks alone:"
                " which records are in them by now, its checkpoint knows, and nothing else can read that. Nothing was"
                " compared",
            )
        refuse_in_flight(flow.name, handles_of(facts.last), "Nothing was verified")
        looks = {
            each.name: (*_of_destination(each, flow.name, history), opened.enter_context(looked_at(spark, each)))
            for each in (sink, *letters.values())
        }
        begin = _begin(facts, history, sources)
        due = Due(begin, flow.moves(), flow.beginning())
        ledger, leftovers, there = looks[sink.name]
        end = _end(ledger, sink, history)
        if all(look.is_of_one_moment for _, _, look in looks.values()):
            hold.go_on()
        origins = []
        for source in sources:
            splits = [split for span in due.ranges(end, sink.name) for split in splits_of(source, span)]
            # What has no snapshot is read once, while the pipeline is held.
            origins.append(SourceRecords(spark, source, splits, history, is_passed=not hold.is_held))
        with reading(origins):
            if hold.is_held:
                there = replace(there, rows=partial(_read_at_once, origins[0], there, hold))
            comparison = compared(asked, origins, made, there, leftovers)
            found, ledgers = {sink.name: comparison}, {sink.name: ledger}
            for source in sources:
                if (dead := letters.get(source.name)) is not None:
                    ledgers[dead.name], more, look = looks[dead.name]
                    leftovers += more
                    bad = due.ranges(_end(ledgers[dead.name], dead, history), dead.name)
                    found[dead.name] = _compare_letters(spark, flow.name, source, look, bad)
        hold.go_on()  # of what does not run: it has not begun meanwhile
    held = () if hold.held_s is None else (f"the pipeline was held between two epochs for {hold.held_s:.1f} s",)
    notes = (*comparison.notes, *due.notes(end, sink.name), *held)
    found[sink.name] = comparison = replace(comparison, notes=notes)
    if by := next(filter(None, map(may_double, history)), ""):  # only what is lost, or changed, is wrong
        found = {name: replace(each, duplicated=0, unexpected=0) for name, each in found.items()}
        says = f"at least once, by {by}: records may be there twice, which are not compared, or before positions"
        notes = (*notes, says)
        comparison = replace(comparison, notes=notes)
    evidence = Evidence(
        compared=found,
        initial=begin if _is_whole(history) else None,
        epochs=tuple(history),
        leftovers=leftovers,
        ledgers=ledgers,
        store_id=facts.store_id,
    )
    epochs = sum(record.state is not EpochState.GIVEN_UP for record in history)
    return Verification(comparison, end, epochs, verdicts(evidence, JUDGED), by)


def _topic(flow: FlowWriter, read: str, sink: Sink) -> KafkaSource:
    """What the sink's rows are made of, with the schema that the first start found."""
    source = unbounded(next(each for each in flow.sources().values() if each.name == read))  # up to the ledger's end
    if not isinstance(source, KafkaSource):
        raise ConfigError(
            "verify-unsupported",
            f"the rows of sink {sink.name!r} are made of {source.name!r}, and verify reads topics again: name other"
            " sinks, --sink",
        )
    return source


def _await_completed(flow: FlowWriter) -> None:
    """Its driver, if it lives, completes a last epoch half a second after it was decided."""
    wait = Wait(COMPLETED_S_MAX, pause_max_s=0.1)
    while any(record.state is EpochState.DECIDED for record in flow.history()) and wait.again():
        pass


def _end(ledger: LedgerEntry, sink: Sink, history: Sequence[EpochRecord]) -> Positions:
    """Up to where the sink is to have the records: a damaged epoch was decided, so it is to be there, and a part of it
    is; where the sink's ledger is gone, up to where the store says."""
    known = [each for each in history if sink.name in each.sinks and each.epoch > ledger.epoch]
    states = (EpochState.DAMAGED,) if ledger.epoch else (EpochState.DAMAGED, EpochState.COMPLETE)
    return next((each.range.end for each in reversed(known) if each.state in states), ledger.positions)


def _of_destination(
    sink: Sink, pipeline: str, history: Sequence[EpochRecord]
) -> tuple[LedgerEntry, tuple[Committable, ...]]:
    """The destination's ledger of the pipeline, one without an epoch where somebody has removed it, and what is left
    over there."""
    committer = sink.recover(pipeline)
    try:
        ledger = committer.ledger()
        if ledger is None and any(each.state is EpochState.COMPLETE and sink.name in each.sinks for each in history):
            ledger = LedgerEntry(epoch=0, generation=0, timestamp_ms=0, positions=Positions(), store_id="")
        if ledger is None:
            raise ConfigError(
                "ledger-missing",
                f"sink {sink.name!r} has no ledger for pipeline {pipeline!r}: nothing was written under that name."
                " Check the pipeline's and the table's name, and the sink's ledger=",
            )
        begun = ledger.announced
        if begun is not None and begun.epoch > ledger.epoch:
            raise ConfigError(
                "epoch-unfinished",
                f"epoch {begun.epoch} of pipeline {pipeline!r} was begun and not finished, and rows of it may show in"
                f" sink {sink.name!r}: start the pipeline, let it finish that epoch, stop it, then verify",
            )
        return ledger, tuple(committer.leftovers(2**62))
    finally:
        committer.close()


def _read_at_once(origin: SourceRecords, there: There, hold: Hold, schema: StructType) -> DataFrame:
    """The rows of what has no snapshot, before the pipeline goes on."""
    rows = origin.keep(there.rows(schema))
    rows.count()
    hold.go_on()
    return rows


def _letters_of(flow: FlowWriter, source: KafkaSource) -> PostgresSink | None:
    dead = flow.graph.letters_of(source.name)
    return dead if isinstance(dead, PostgresSink) else None


def _compare_letters(
    spark: SparkSession, pipeline: str, source: KafkaSource, there: There, due: Sequence[Range]
) -> Comparison:
    """The records of the source that cannot be read, and the table of those that could not be."""
    bad = [read_bad_records(spark, source, each.start, each.end) for each in due]
    expected = reduce(DataFrame.unionAll, bad).select(columns(LETTER_CONTENT))
    schema = StructType([*expected.schema.fields, StructField("pipeline", StringType())])
    mine = there.rows(schema).where(F.col("pipeline") == pipeline).drop("pipeline")
    return compare(expected, mine, LETTER_CONTENT[:3])


def _begin(facts: StoreFacts, history: Sequence[EpochRecord], sources: Sequence[KafkaSource]) -> Positions:
    """The pipeline's first position; by the source's own settings where the store was adopted, and forgot it."""
    if facts.frozen is not None:
        return facts.frozen
    if _is_whole(history):
        return history[0].range.start
    return reduce(Positions.beside, (source.initial_positions() for source in sources))


def _is_whole(history: Sequence[EpochRecord]) -> bool:
    """Whether the store still has the pipeline's first epoch: old ones are pruned, or were another store's."""
    return bool(history) and history[0].epoch == 1 and history[0].query_id != ADOPTED
