"""What users write: processors and functions of random flows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onefold.flow import Side, StatefulProcessor

__all__ = ["FAR_MS", "PROCESSORS", "Copies", "Raised", "Totals", "joined", "larger", "largest"]

FAR_MS = 4_000_000_000_000  # a timer of then stays


@dataclass(frozen=True)
class Raised:
    """A function of batches, which gives its rows in two parts."""

    bound: int

    def __call__(self, batch: pa.RecordBatch) -> Iterator[Any]:
        low = pc.fill_null(pc.less(batch["n"], self.bound), False)
        yield Side("rest", batch.filter(pc.invert(low)))
        raised = batch.filter(low)
        raised = raised.set_column(3, "n", pc.add_checked(raised["n"], self.bound))
        half = raised.num_rows // 2
        yield raised.slice(0, half)
        yield pa.Table.from_batches([raised.slice(half)])


@dataclass(frozen=True)
class Copies:
    """A function of rows."""

    most: int

    def __call__(self, row: dict[str, Any]) -> Iterator[Any]:
        count = 0 if row["n"] is None else row["n"] % self.most
        if not count:
            yield Side("rest", row)
        for number in range(count):
            yield {**row, "note": f"{row['note']}.{number}"} if number % 2 else tuple({**row, "n": number}.values())


class _Processor(StatefulProcessor):
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:
        del key, timerValues
        for row in rows:
            yield from self.row(row)

    def row(self, row: Any) -> Iterable[Any]:
        raise NotImplementedError


class Numbered(_Processor):
    """Numbers a key's rows; each third is one of the side output. Forgets after the seventh."""

    def init(self, handle: Any) -> None:
        self.last = handle.getValueState("last", "number long, amount decimal(12,2), at timestamp")
        self.bytes = handle.getBytesState("bytes")

    def row(self, row: Any) -> Iterable[Any]:
        assert self.last.exists() == (self.last.get() is not None)
        number, amount, at = self.last.get() or (0, None, None)
        seen = (self.bytes.get() or b"") + b"%d" % (number % 10)
        given = row.asDict() | {"n": number + 1, "amount": amount, "at": at, "note": seen.decode()}
        yield Side("rest", given) if number % 3 == 2 else given
        if number == 6:
            self.last.clear()
            self.bytes.clear()
        else:
            self.last.update((number + 1, row.amount, row.at))
            self.bytes.update(seen)


class Listed(_Processor):
    """Keeps the notes of a key's last rows."""

    def init(self, handle: Any) -> None:
        self.notes = handle.getListState("notes", "note string, n long")

    def row(self, row: Any) -> Iterable[Any]:
        if row.n is None:
            self.notes.clear()
            yield Side("rest", row.asDict())
            return
        self.notes.appendValue((row.note, row.n))
        kept = [*self.notes.get()]
        if len(kept) > 4:
            self.notes.put(kept[-2:])
        elif row.n % 5 == 0:
            self.notes.appendList([("five", 5), (None, None)])
        yield row.asDict() | {"note": "".join(str(note)[:1] for note, _ in self.notes.get())}


class Counted(_Processor):
    """Counts a key's rows by team, and forgets a team at its third."""

    def init(self, handle: Any) -> None:
        self.teams = handle.getMapState("teams", "team string", "times long")

    def row(self, row: Any) -> Iterable[Any]:
        team = (str(row.team),)
        (times,) = self.teams.getValue(team) or (0,)
        if times == 2:
            self.teams.removeKey(team)
            yield Side("rest", row.asDict())
        else:
            self.teams.updateValue(team, (times + 1,))
        assert self.teams.containsKey(team) == (times != 2)
        if row.n == 0:
            self.teams.clear()
        told = " ".join(f"{team}{times}" for (team,), (times,) in self.teams.iterator())
        yield row.asDict() | {"note": told, "n": len([*self.teams.keys()])}


class Alarms(_Processor):
    """Keeps numbers as timers that do not come."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def row(self, row: Any) -> Iterable[Any]:
        at_ms = FAR_MS + (row.n or 0) % 7
        if at_ms in self.handle.listTimers():
            self.handle.deleteTimer(at_ms)
            yield Side("rest", row.asDict())
        else:
            self.handle.registerTimer(at_ms)
            yield row.asDict() | {"note": "".join(str(at - FAR_MS) for at in self.handle.listTimers())}

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterable[Any]:
        del timerValues
        raise AssertionError(f"{key}'s timer of {expiredTimerInfo.getExpiryTimeInMs()} has come")


class Distinct(_Processor):
    """The numbers of each team, each once; another time they are rows of the side output. Whatever the rows' order."""

    def init(self, handle: Any) -> None:
        self.seen = handle.getMapState("seen", "n string", "times long")

    def row(self, row: Any) -> Iterable[Any]:
        number = (str(row.n),)
        (times,) = self.seen.getValue(number) or (0,)
        self.seen.updateValue(number, (times + 1,))
        given = {"account": times, "team": row.team, "n": row.n}
        yield given if times == 0 else Side("rest", given)


PROCESSORS: dict[str, type[StatefulProcessor]] = {
    "numbered": Numbered,
    "listed": Listed,
    "counted": Counted,
    "alarms": Alarms,
    "distinct": Distinct,
}


class Totals(StatefulProcessor):
    """Emits a key's row at the end of each epoch in which it had rows."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "number long, total long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:
        del key
        number, total = self.total.get() or (0, 0)
        for row in rows:
            number, total = number + 1, total + (row.n or 0)
        self.total.update((number, total))
        for at_ms in [*self.handle.listTimers()]:
            self.handle.deleteTimer(at_ms)  # the row of before comes once
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs())
        return ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterable[Any]:
        del timerValues, expiredTimerInfo
        yield (*key, *self.total.get())


def largest(kept: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """Of two rows one, whatever their order."""
    return max(kept, row, key=lambda each: [(value is not None, str(value)) for value in each.values()])


def joined(kept: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "note": f"{kept['note']}|{row['note']}"[-20:]}


def larger(kept: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    return row if row["most"] > kept["most"] else kept
