"""The sources of a flow as one, on either runtime: planned together, and begun and refused by the same rules.

A start refuses positions that none of them reads, settings that have no effect, and journals that are gone.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing

from onefold.clients.sql.url import url_of
from onefold.core.contract import EpochRecord, LedgerEntry, Sink, SinkKind
from onefold.core.errors import ConfigError, DataLoss
from onefold.core.positions import Positions, Range, Relation
from onefold.core.protocol.effects import StoreFacts
from onefold.core.protocol.epoch import Initial
from onefold.core.protocol.request_checks import other_setting
from onefold.core.source import (
    BoundedSource,
    Journal,
    Keep,
    Placed,
    ReadOnce,
    Source,
    SourcePlanner,
    Split,
    own_positions,
    read_of,
    settled,
)
from onefold.core.values.plain import shown_url
from onefold.core.values.remedies import remedies
from onefold.flow.graph.epochs_apart import going_by_epoch
from onefold.flow.graph.nodes import Graph, Shipping
from onefold.flow.graph.operators import Aggregating, Reducing, Windowing
from onefold.flow.processing.mechanisms import MECHANISMS, has_snapshots
from onefold.flow.time.clocks import SourceEnd

log = logging.getLogger("onefold")

NOWHERE = Positions()
SHOWN_MAX = 3


class Planners:
    """The planners of all sources: the positions of an epoch are those of every source.

    `sources` by the numbers of their nodes; `journal` gives that of a source by its name. `added` is where those begin
    that came later, which the chain of epochs does not know: to it, what has no position stands at its first record.
    `held` are partitions, by their nodes, that `end` leaves where they are, and whose silence is none.
    """

    def __init__(
        self,
        sources: Mapping[int, Source],
        frozen: Positions | None,
        journal: Callable[[str], Journal],
        added: Positions = NOWHERE,
    ) -> None:
        self._sources = dict(sources)
        self._frozen, self._journal = frozen, journal
        self._planners = {number: self._planner(source) for number, source in sources.items()}
        self._ending: dict[int, SourcePlanner] = {}  # of those that `end_now` bounds: these know of an end of their own
        self.added = added
        self.held: Mapping[int, Collection[str]] = {}

    def initial(self) -> Positions:
        return self._joined(lambda _, planner: planner.initial())

    def begin_added(self, flow: str, at: Positions, keep: Keep) -> None:
        """From here on what was added to the flow and has no position at `at`, begins where its own setting says, as
        that was found first. The log says so, once all sources have answered."""
        begun = list[tuple[str, str]]()
        for source in self._sources.values():
            if (of := settled(source)) is None:
                continue
            found = of.added(own_positions(source, at))
            topics = sorted({name.rpartition("/")[0] for name, _ in found.items})
            if topics:  # each by itself: the next start may have one more
                kept = [Positions.from_json(keep(_pin(topic), _of_topic(found, topic).to_json)) for topic in topics]
                for each in kept:
                    self.added = each.beside(self.added)
                begun.append((",".join(topics), of.starting_text))
        for names, setting in begun:
            log.info("flow %r: %s, added later: read from starting_offsets=%r on", flow, names, setting)

    def end_now(self, at: Positions) -> None:
        """From here on nothing is planned beyond what there is now. Where a source does not answer it may be called
        again, and asks those that have not answered yet."""
        for number, source in self._sources.items():
            if not isinstance(source, BoundedSource) and number not in self._ending:  # a bounded one ends before that
                until = self._planners[number].latest(self._own(number, at))
                bounded = self._planner(source, until)
                self._ending[number], self._planners[number] = self._planners[number], bounded

    def leave(self, at: Positions) -> None:
        """Hold all partitions: an epoch that does not look for records takes none for silent."""
        self.held = {number: read_of(of, self._own(number, at)) or ("",) for number, of in self._sources.items()}

    def end(self, start: Positions) -> Positions:
        """Where an epoch from `start` on may end now."""

        def end_of(number: int, planner: SourcePlanner) -> Positions:
            own = self._own(number, start)
            return _without(planner.end(own), own, self.held.get(number, ()))

        return self._joined(end_of)

    def cut(self) -> set[str]:
        """The partitions of which the last `end` left something that was there, without those that wait for others."""
        found = ((planner.cut(), self.held.get(number, ())) for number, planner in self._planners.items())
        return {name for names, waiting in found if "" not in waiting for name in {*names} - {*waiting}}

    def behind(self, start: Positions) -> Counter[str]:
        """How much there is to read from `start` on, by what it is counted in."""
        found = Counter[str]()
        for number, planner in self._planners.items():
            found[planner.unit] += sum(planner.behind(self._own(number, start)).values())
        return found

    def splits(self, span: Range) -> dict[int, Sequence[Split]]:
        """The parts of the range, by the number of the source's node."""
        return {
            number: planner.splits(Range(self._own(number, span.start), self._own(number, span.end)))
            for number, planner in self._planners.items()
        }

    def source_end(self, node: int, at: Positions) -> SourceEnd:
        """Where the source of a node stands there: the same for the same positions and the same `held`."""
        own = self._own(node, at)
        ending = self._ending.get(node, self._planners[node])
        waited = tuple(sorted(self.held.get(node, ())))
        return SourceEnd(read_of(self._sources[node], own), ending.is_done(own), waited)

    def is_done(self, at: Positions) -> bool:
        """Whether nothing comes after `at`, from any source."""
        return all(planner.is_done(self._own(number, at)) for number, planner in self._planners.items())

    def completed(self, end: Positions) -> None:
        for number, planner in self._planners.items():
            planner.completed(self._own(number, end))

    def close(self) -> None:
        for planner in (*self._planners.values(), *self._ending.values()):
            planner.close()

    def _planner(self, source: Source, until: Positions | None = None) -> SourcePlanner:
        own = None if self._frozen is None else own_positions(source, self._frozen)
        return source.planner(own, until, self._journal(source.name))

    def _own(self, number: int, positions: Positions) -> Positions:
        return own_positions(self._sources[number], positions.beside(self.added))

    def _joined(self, ask: Callable[[int, SourcePlanner], Positions]) -> Positions:
        """The positions of all sources. Raises ConfigError where two of them have a partition in common."""
        items: dict[str, int | str] = {}
        marks: dict[str, str] = {}
        for number, planner in self._planners.items():
            part = ask(number, planner)
            for name, at in part.items:
                if name in items:
                    raise self._overlap(name)
                items[name] = at
            marks |= dict(part.marks)
        return Positions.of(items, marks)

    def _overlap(self, name: str) -> ConfigError:
        both = [repr(source.name) for source in self._sources.values() if source.covers(name)]
        return ConfigError(
            "sources-overlap",
            f"the sources {' and '.join(both)} of the flow both read {name}, which has one position. Let one source"
            " read it, and use that stream twice",
        )


def _without(end: Positions, start: Positions, held: Collection[str]) -> Positions:
    """With these partitions where they are; one that positions do not name is all that the source has."""
    if not {*held} <= {name for name, _ in start.items}:
        return start
    return Positions.of({**dict(end.items), **{name: at for name, at in start.items if name in held}}, end.marks)


def _of_topic(positions: Positions, topic: str) -> Positions:
    def its(named: tuple[str, object]) -> bool:
        return named[0].rpartition("/")[0] == topic

    return Positions(tuple(filter(its, positions.items)), tuple(filter(its, positions.marks)))


def _pin(topic: str) -> str:
    """Under which the begin is kept: names in the store have a limit."""
    return f"added {hashlib.sha256(topic.encode()).hexdigest()[:32]}"


def check_covered(flow: str, sources: Iterable[Source], facts: StoreFacts) -> None:
    """Raise ConfigError where the flow stands in something that no source of today reads, or has begun an epoch there,
    which runs again without its records."""
    at = facts.last.range.end.of_records() if facts.last else facts.frozen or Positions()
    begun = facts.begun.range.end.of_records() if facts.begun else Positions()
    check_read(flow, sources, at.beside(begun))


def check_read(flow: str, sources: Iterable[Source], at: Positions) -> None:
    """Raise ConfigError where the flow is to go on from positions that no source of today reads."""
    read = [*sources]
    strange = [name for name, _ in at.items if not any(source.covers(name) for source in read)]
    if strange:
        more = f" and {len(strange) - SHOWN_MAX} more" if len(strange) > SHOWN_MAX else ""
        raise ConfigError(
            "positions-not-read",
            f"flow {flow!r} stands at positions in {', '.join(strange[:SHOWN_MAX])}{more}, which none of its sources"
            f" reads ({', '.join(source.name for source in read) or 'it has none'}): a source or a topic was taken out,"
            " or a path or a name was changed. Nothing was read. Put it back as it was: a topic that is gone for good"
            f" stays in forget_topics; or, to begin anew with the other sources, {remedies().begin_anew(empties=True)}",
        )


def check_apart(sources: Iterable[Source], checkpoint: str, own: str, store: str) -> None:
    """Raise ConfigError where a source would read the flow's own files: its checkpoint, whose part `own` is the flow's,
    or the store, by its URL."""
    database = url_of(store, "the checkpoint store's")
    places = [(checkpoint, own)]
    if database.file is not None:
        places.append((database.file, database.file))
    for source in sources:
        if isinstance(source, Placed):
            for place in places:
                source.check_apart(*place)


def check_mechanism(graph: Graph, mechanism: str, state: str = "memory", checkpoint: str = "") -> None:
    """Raise ConfigError where the flow has what the mechanism does not protect. `state` is the backend."""
    if mechanism not in MECHANISMS:
        raise ConfigError("option-value", f"mechanism={mechanism!r}: there are {', '.join(MECHANISMS)}")
    if has_snapshots(mechanism):
        return
    if timed := [*_timed(graph)]:
        raise ConfigError(
            "mechanism-event-time",
            f"flow {graph.flow!r} goes by event time, or has windows ({', '.join(timed)}), and mechanism={mechanism!r}"
            " has none: no epoch tells all operators how far time has come. Leave out watermarks, windows and joins, or"
            " use mechanism='barriers'",
        )
    _check_rebalanced(graph, mechanism)
    if mechanism == "transaction":
        _check_hops(graph, checkpoint)
    if mechanism == "ack" and state != "memory" and graph.keeps_state:
        raise ConfigError(
            "mechanism-state-backend",
            f"flow {graph.flow!r} has state={state!r}, and mechanism='ack' keeps state in memory alone. Use"
            " state='memory', or mechanism='barriers'",
        )


def _check_hops(graph: Graph, checkpoint: str) -> None:
    """Raise ConfigError for what bundle after bundle does not give as an epoch does."""
    if "://" in checkpoint:
        raise ConfigError(
            "mechanism-local-disk",
            f"checkpoint={shown_url(checkpoint)!r} is no folder of this machine, and with mechanism='transaction' each"
            " bundle waits until it is durable there: name a folder on a local disk",
        )
    for node, reading in graph.readings():
        if isinstance(reading.source, ReadOnce):
            raise ConfigError(
                "mechanism-read-once",
                f"flow {graph.flow!r} reads {node.name!r} once, and mechanism='transaction' takes it piece by piece, of"
                " which a crash would show some as they are later. Use mechanism='barriers'",
            )


def _check_rebalanced(graph: Graph, mechanism: str) -> None:
    """Raise ConfigError where rows of a key may change their order, and their epoch alone tells them apart: one may
    have several."""
    by_epoch = going_by_epoch(graph)
    for node, _ in graph.writings():
        edge = node.inputs[0]
        while edge.shipping is not Shipping.REBALANCE and len(before := graph.nodes[edge.source].inputs) == 1:
            if graph.nodes[edge.source].keeps_state:
                break
            (edge,) = before
        # The number is a bundle's, which those of another subtask are no measure of: an aggregate's are of one.
        is_of_bundles = mechanism == "transaction"
        is_apart = is_of_bundles and not isinstance(graph.nodes[edge.source].operator, Aggregating | Reducing)
        if node.number in by_epoch and (edge.shipping is Shipping.REBALANCE or is_apart):
            raise ConfigError(
                "mechanism-rebalanced",
                f"sink {node.name!r} keeps the newest row of a key by the number of its epoch, and"
                f" {'from several subtasks' if is_apart else 'behind rebalance()'} rows of a key overtake each other"
                f" with mechanism={mechanism!r}. {'Aggregate them' if is_apart else 'Leave out rebalance()'}, or use"
                " mechanism='barriers'",
            )


def check_journals(
    sources: Iterable[Source], ledgers: Mapping[str, LedgerEntry | None], journal: Callable[[str], Journal]
) -> None:
    """Raise the source's own error where a ledger has positions that name texts of a journal which is gone, as with
    the store that had it: such a ledger is not to be adopted."""
    for source in sources:
        for entry in ledgers.values():
            own = own_positions(source, Positions() if entry is None else entry.positions)
            if any(isinstance(position, str) for _, position in own.items):
                with closing(source.planner(journal=journal(source.name))) as planner:
                    planner.is_done(own)


def check_replayable(flow: str, sources: Iterable[Source], sinks: Iterable[Sink]) -> None:
    """Raise ConfigError for a source that cannot be read again as it was, beside a sink that is written before an epoch
    is decided. Asks the sinks for their guarantees."""
    once = next((source for source in sources if isinstance(source, ReadOnce)), None)
    if once is None:
        return
    for sink in sinks:
        if sink.guarantee().kind is SinkKind.WRITE_THROUGH:
            raise ConfigError(
                "source-not-replayable",
                f"flow {flow!r} reads {once.name!r}, and writes to {sink.name!r} before an epoch is decided: after a"
                " crash that epoch must run again with the same rows, and the table may have others by then. Nothing"
                " was written. Write to a transactional, two-phase or staged sink; or make two flows of it, of which"
                " the first copies the table into a topic, and the second reads that",
            )


def check_read_once(flow: str, sources: Iterable[Source], epoch: EpochRecord) -> None:
    """Raise DataLoss where an epoch that is decided would be read again for its state, and not as it was."""
    for source in sources:
        start, end = (own_positions(source, at) for at in (epoch.range.start, epoch.range.end))
        if isinstance(source, ReadOnce) and start != end:
            raise DataLoss(
                "state-not-replayable",
                f"epoch {epoch.epoch} of flow {flow!r} is in every sink, and Spark has ended before it kept the state"
                f" that goes with it: {source.name!r} would be read again for that, and may have other rows by now."
                f" Nothing more was written. To begin anew, {remedies().begin_anew(empties=True)}; or run it on the"
                " engine, which keeps state and rows together",
            )


def initial_of(flow: str, sources: Iterable[Source], facts: StoreFacts, begin: Positions) -> Initial:
    """Where the flow's first start begins. Raises ConfigError for a setting that is another than the one by which this
    was settled, and says so in the log where it has no effect any more, since records were written. A flow whose
    sources have none goes on where it stands, as with "ledger"."""
    read = [*sources]
    told = {source.name: of.starting_text for source in read if (of := settled(source)) is not None}
    for source in read:
        was, now = _settled_by(source, facts.frozen), told.get(source.name)
        if was is None or now in (None, was, "ledger"):
            continue
        if not _has_read(facts):
            raise other_setting(was, now)
        log.warning(
            "flow %r: starting_offsets=%r of %s is ignored: the flow goes on from what was written. To begin"
            " elsewhere, %s",
            flow,
            now,
            source.name,
            remedies().begin_anew(empties=True),
        )
    goes_on = "ledger" in told.values() or (not told and facts.last is not None)
    if facts.frozen is not None:
        setting = facts.frozen.setting
    else:  # of one source as it is, as a pipeline on Spark has it
        setting = json.dumps(sorted(told.items())) if len(told) > 1 else next(iter(told.values()), None)
    return Initial(begin, goes_on, setting)


def _has_read(facts: StoreFacts) -> bool:
    """Whether the flow has come further than where it began: its first epochs may have found nothing."""
    if facts.last is None or facts.frozen is None:
        return facts.last is not None
    return facts.last.range.end.of_records().relation_to(facts.frozen.of_records()) is not Relation.SAME


def _timed(graph: Graph) -> Iterator[str]:
    yield from (f"watermarks of {node.name}" for node, reading in graph.readings() if reading.watermarks is not None)
    yield from (node.name for node in graph.nodes if node.keeps_event_time or isinstance(node.operator, Windowing))


def _settled_by(source: Source, frozen: Positions | None) -> str | None:
    """The setting by which the begin of a source was settled; None for one that was added later."""
    text = frozen.setting if frozen else None
    if frozen is None or text is None:
        return None
    if text.startswith("["):
        return dict(json.loads(text)).get(source.name)
    return text if any(source.covers(name) for name, _ in frozen.items) else None
