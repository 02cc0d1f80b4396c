"""The rule of event time: how the watermark of an operator moves, at the end of each epoch and nowhere else.

It is a function of what the partitions' records said, and of the epochs' times where a partition is silent. So it is
the same when an epoch runs again, on each runtime, in each subtask, and however partitions are shared out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import index
from typing import NamedTuple, TypeAlias

from onefold.core.source import Part
from onefold.flow.time.watermarks import Watermarks

END = 2**63 - 1  # the watermark once all sources have ended: no record is of this time or later

Partition: TypeAlias = "tuple[str, str]"  # a source's uid, and the name of one of its partitions as positions have it
Row: TypeAlias = "tuple[str, str, int | None, int | None]"

WATERMARK, _ENDED, _IDLE = "$watermark", "$ended", "$idle"  # in the place of a uid, which none is


@dataclass(frozen=True, slots=True)
class SourceEnd:
    """Where a source stands at the end of an epoch: the partitions that its positions name, and whether nothing comes
    after it. Those that `waited`, for other sources or a pause, may have had records, and are not silent."""

    partitions: tuple[str, ...]
    is_last: bool = False
    waited: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Times:
    """What an epoch's records say of event time, as far as they were read in some place.

    named  all partitions there are
    read   of those with records, how far they have come, in microseconds; None where the records do not say
    ended  the sources that have ended, by their uids
    """

    named: frozenset[Partition] = frozenset()
    read: Mapping[Partition, int | None] = field(default_factory=dict)
    ended: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.named or self.ended)

    def joined(self, other: Times) -> Times:
        """Of both places."""
        if not self:
            return other
        both = dict(self.read)
        for partition, us in other.read.items():
            both[partition] = _highest(both.get(partition), us)
        return Times(self.named | other.named, both, self.ended | other.ended)


NO_TIMES = Times()


class Highest:
    """What the records of one source say, in the place where they are read; by the source's uid."""

    def __init__(self, uid: str, watermarks: Watermarks) -> None:
        self.uid, self._watermarks = uid, watermarks
        self._read: dict[str, int | None] = {}

    def see(self, partition: str, part: Part) -> None:
        """Raises BadRecord where a row has no time. Records that could not be read say nothing, and are no silence."""
        if part.rows.num_rows or part.bad.num_rows:
            us = self._watermarks.of(part.rows) if part.rows.num_rows else None
            known = None if us is None else min(max(index(us), 1 - END), END - 1)  # before END, whatever a record says
            self._read[partition] = _highest(self._read.get(partition), known)

    def take(self, at: SourceEnd) -> Times:
        """Of the epoch that ends here. A partition that positions do not name, as a file of a folder or a part of a
        table, goes by the first clock of its source, of which such a one has no other."""
        names = at.partitions or ("",)
        read: dict[Partition, int | None] = {(self.uid, name): None for name in at.waited}
        for name, us in self._read.items():
            partition = self.uid, name if name in names else names[0]
            read[partition] = _highest(read.get(partition), us)
        self._read = {}
        return Times(frozenset((self.uid, name) for name in names), read, frozenset([self.uid] if at.is_last else ()))


class Reached(NamedTuple):
    """How far a partition has come that counts."""

    partition: Partition
    us: int
    is_silent: bool


@dataclass(frozen=True, slots=True)
class ClockStatus:
    """For people: where a watermark is, and which partition it waits for, since when (ms since 1970), for how long at
    most. None: it is not known yet; it waits for none; for ever. `late` rows of the last epoch came too late. And for
    who plans the next epoch, how far partitions have come. One that `is_by_end` only has to know when all have ended.
    """

    watermark_us: int | None
    waits_for: str | None = None
    since_ms: int = 0
    idle_ms: int | None = None
    late: int = 0
    is_by_end: bool = False
    reached: tuple[Reached, ...] = field(default=(), compare=False)


@dataclass(slots=True)
class _Clock:
    at_us: int | None  # how far the partition has come; None until its records have said so
    active_ms: int  # the time of the last epoch in which it had records; at first, of the one that named it


class _Silence(NamedTuple):
    """After how long a partition of a source is silent; and whether time goes on while all are."""

    after_ms: int | None
    goes_on: bool


class Clocks:
    """Of an operator: one for each partition of the sources that feed it. `watermarks` are these sources', by uid.

    Another `idle`, or `when_silent`, than the rows' counts from the second epoch on: the first may be one that runs
    again, as it was."""

    def __init__(self, watermarks: Mapping[str, Watermarks], rows: Iterable[Row] = ()) -> None:
        self._silence = {
            uid: _Silence(policy.idle_ms, policy.when_silent == "advance") for uid, policy in watermarks.items()
        }
        self._by_epochs = {uid for uid, policy in watermarks.items() if policy.by_epochs}
        self.goes_on = any(policy.goes_on for policy in watermarks.values())
        self._ahead_us = {uid: policy.ahead_us for uid, policy in watermarks.items() if policy.ahead_us is not None}
        self._silence_now = dict(self._silence)  # of the epoch that ends next
        self._clocks: dict[Partition, _Clock] = {}
        self._ended: frozenset[str] = frozenset()
        self.watermark_us: int | None = None
        self._now_ms = 0  # of the last epoch
        for uid, name, us, active_ms in rows:
            if uid == WATERMARK:
                self.watermark_us, self._now_ms = us, active_ms or 0
            elif uid == _ENDED:
                self._ended |= {name}
            elif uid == _IDLE:
                self._silence_now |= {name: _Silence(active_ms, us is not None)} if name in self._silence else {}
            elif active_ms is not None:
                self._clocks[uid, name] = _Clock(us, active_ms)

    def as_rows(self) -> list[Row]:
        """All that it remembers, from which `Clocks` makes it again."""
        partitions = [(*partition, clock.at_us, clock.active_ms) for partition, clock in sorted(self._clocks.items())]
        ended: list[Row] = [(_ENDED, uid, None, None) for uid in sorted(self._ended)]
        silence = sorted(self._silence_now.items())
        idle: list[Row] = [(_IDLE, uid, 1 if of.goes_on else None, of.after_ms) for uid, of in silence]
        return [(WATERMARK, "", self.watermark_us, self._now_ms), *ended, *idle, *partitions]

    def advance(self, times: Times, now_ms: int) -> None:
        """At the end of the epoch of that time. What is named no more is forgotten. Without any times, as where nothing
        was even looked for, the sources stand where they stood."""
        times = times or Times(frozenset(self._clocks), {}, self._ended)
        before, self._clocks, self._ended = self._clocks, {}, times.ended
        for partition in times.named:
            clock = before.get(partition) or _Clock(None, now_ms)
            if partition[0] in self._by_epochs:
                clock = _Clock(now_ms * 1_000, now_ms)
            elif partition in times.read:
                us, ahead_us = times.read[partition], self._ahead_us.get(partition[0])
                is_beyond = us is not None and ahead_us is not None and us > now_ms * 1_000 + ahead_us
                clock = _Clock(clock.at_us if is_beyond else _highest(clock.at_us, us), now_ms)
            self._clocks[partition] = clock
        self._now_ms = now_ms
        self.watermark_us = _highest(self.watermark_us, self._at(now_ms, self._silence_now))
        self._silence_now = self._silence

    def next_release_ms(self, due_us: int | None = None) -> int | None:
        """When the watermark moves next where no record comes: because a partition is silent by then; or because it
        goes on with the epochs' time, and comes to `due_us`, for which somebody waits."""
        found = [] if (ms := self._next_silent_ms()) is None else [ms]
        if due_us is not None and self.goes_on and _before(self.watermark_us) < due_us < END:
            reached = [-(-due_us // 1_000)]  # of what goes by epochs; then of what goes on once all are silent
            if (lead_us := self._lead_us) is not None:
                silent_ms = (self._silent_from_ms(each, self._silence) or END for each in self._counting())
                reached.append(max(-(-(due_us - lead_us) // 1_000), *silent_ms))
            found += [ms for ms in reached if _before(self._at(ms, self._silence)) >= due_us]
        return min(found, default=None)

    def _next_silent_ms(self) -> int | None:
        releases = sorted(
            (
                END if (ms := self._silent_from_ms(each, self._silence)) is None else ms,
                _before(self._clocks[each].at_us),
            )
            for each in self._counting()
        )
        highest, lowest = max((us for _, us in releases), default=-END), END
        lowest_after: dict[int, int] = {}  # of the partitions that are still awake at that time; END where none is
        for ms, us in reversed(releases):
            lowest_after.setdefault(ms, lowest)
            lowest = min(lowest, us)
        for ms, us in reversed(lowest_after.items()):
            if ms != END and (highest if us == END else us) > _before(self.watermark_us):
                return ms
        return None

    def status(self) -> ClockStatus:
        """As of the last epoch."""
        awake = self._awake(self._now_ms, self._silence)
        at = ((each, self._clocks[each].at_us) for each in self._counting())
        reached = tuple(Reached(each, us, each not in awake) for each, us in at if us is not None)
        if len(self._counting()) < 2 or not awake:
            return ClockStatus(self.watermark_us, reached=reached)
        waits_for = min(awake, key=lambda partition: (_before(self._clocks[partition].at_us), partition))
        uid, name = waits_for
        since_ms, idle_ms = self._clocks[waits_for].active_ms, self._silence[uid].after_ms
        return ClockStatus(self.watermark_us, name or uid, since_ms, idle_ms, reached=reached)

    def _at(self, now_ms: int, silence: Mapping[str, _Silence]) -> int | None:
        """Where the partitions are, all together; None where that is unknown."""
        if self._ended >= silence.keys():
            return END
        if awake := self._awake(now_ms, silence):
            found = [1_000 * now_ms if each[0] in self._by_epochs else self._clocks[each].at_us for each in awake]
            known = [us for us in found if us is not None]
            return min(known) if len(known) == len(found) else None
        counting, lead_us = self._counting(), self._lead_us
        if lead_us is None:
            return None
        goes_on = all(silence[uid].goes_on for uid, _ in counting)
        return min(lead_us + 1_000 * (now_ms if goes_on else self._last_ms), END - 1)

    @property
    def _last_ms(self) -> int:
        """The time of the last epoch in which a partition that counts had records, of those that have said how far they
        are: one that is new, and empty, does not hold up the others a second time."""
        known = (clock for each in self._counting() if (clock := self._clocks[each]).at_us is not None)
        return max((clock.active_ms for clock in known), default=0)

    @property
    def _lead_us(self) -> int | None:
        """How far the partition that is furthest has come beyond that."""
        highest = max((us for each in self._counting() if (us := self._clocks[each].at_us) is not None), default=None)
        return None if highest is None else highest - 1_000 * self._last_ms

    def _counting(self) -> list[Partition]:
        return [each for each in self._clocks if each[0] in self._silence and each[0] not in self._ended]

    def _awake(self, now_ms: int, silence: Mapping[str, _Silence]) -> list[Partition]:
        froms = ((partition, self._silent_from_ms(partition, silence)) for partition in self._counting())
        return [partition for partition, from_ms in froms if from_ms is None or now_ms < from_ms]

    def _silent_from_ms(self, partition: Partition, silence: Mapping[str, _Silence]) -> int | None:
        wait_ms = silence[partition[0]].after_ms
        return None if wait_ms is None else self._clocks[partition].active_ms + wait_ms


def _highest(one: int | None, other: int | None) -> int | None:
    return max((us for us in (one, other) if us is not None), default=None)


def _before(us: int | None) -> int:
    """What is unknown comes before all that is known."""
    return -END if us is None else us
