"""The planners of all sources of a flow, as one: the positions of an epoch are those of every source."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from onefold.core.errors import ConfigError
from onefold.core.positions import Positions, Range
from onefold.core.source import BoundedSource, Journal, Keep, Source, SourcePlanner, Split, own_positions, settled

__all__ = ["Planners"]

NOWHERE = Positions()


class Planners:
    """`sources` by the numbers of their nodes; `journal` gives that of a source by its name. `added` is where those
    begin that came later, which the chain of epochs does not know: to it, what has no position stands at its first
    record."""

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
        self.added = added

    def initial(self) -> Positions:
        return self._joined(lambda _, planner: planner.initial())

    def begin_added(self, at: Positions, keep: Keep) -> Iterator[tuple[str, str]]:
        """From here on what was added to the flow and has no position at `at`, begins where its own setting says, as
        that was found first. Returns each source's name and setting."""
        for source in self._sources.values():
            if (of := settled(source)) is None:
                continue
            found = of.added(own_positions(source, at))
            topics = sorted({name.rpartition("/")[0] for name, _ in found.items})
            if topics:  # each by itself: the next start may have one more
                kept = [Positions.from_json(keep(_pin(topic), _of_topic(found, topic).to_json)) for topic in topics]
                for each in kept:
                    self.added = each.beside(self.added)
                yield ",".join(topics), of.starting_text

    def end_now(self, at: Positions) -> None:
        """From here on nothing is planned beyond what there is now."""
        for number, source in self._sources.items():
            if not isinstance(source, BoundedSource):  # which ends before that
                until = self._planners[number].latest(self._own(number, at))
                self._planners[number].close()
                self._planners[number] = self._planner(source, until)

    def end(self, start: Positions) -> Positions:
        """Where an epoch from `start` on may end now."""
        return self._joined(lambda number, planner: planner.end(self._own(number, start)))

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

    def is_done(self, at: Positions) -> bool:
        """Whether nothing comes after `at`, from any source."""
        return all(planner.is_done(self._own(number, at)) for number, planner in self._planners.items())

    def completed(self, end: Positions) -> None:
        for number, planner in self._planners.items():
            planner.completed(self._own(number, end))

    def close(self) -> None:
        for planner in self._planners.values():
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


def _of_topic(positions: Positions, topic: str) -> Positions:
    def its(named: tuple[str, object]) -> bool:
        return named[0].rpartition("/")[0] == topic

    return Positions(tuple(filter(its, positions.items)), tuple(filter(its, positions.marks)))


def _pin(topic: str) -> str:
    """Under which the begin is kept: names in the store have a limit."""
    return f"added {hashlib.sha256(topic.encode()).hexdigest()[:32]}"
