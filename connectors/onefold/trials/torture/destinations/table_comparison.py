"""Compares the topic's orders with the table's rows and the dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from onefold.core import EpochRecord
from onefold.core.invariants import DECIDED, SAMPLES_MAX, Comparison
from onefold.trials.workload.mixed import MixedOrder
from onefold.trials.workload.workload_settings import TOPIC

Row = tuple[Hashable, ...]  # the key first
RecordId = tuple[int, int]  # partition and offset


@dataclass
class _Wrong:
    counts: Counter[str] = field(default_factory=Counter)
    samples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, what: str, times: int = 1) -> None:
        if times > 0:
            self.counts[kind] += times
            self.samples.setdefault(kind, []).append(what)

    def of(self, expected: int, actual: int, dead: int) -> Comparison:
        return Comparison(
            expected=expected,
            actual=actual,
            dead=dead,
            lost=self.counts["lost"],
            duplicated=self.counts["duplicated"],
            changed=self.counts["changed"],
            unexpected=self.counts["unexpected"],
            samples={kind: keys[:SAMPLES_MAX] for kind, keys in self.samples.items()},
        )


def compare_rows(expected: Mapping[Hashable, list[Row]], actual: Mapping[Hashable, list[Row]]) -> Comparison:
    """Compare rows by key, as `onefold verify` does: a key may occur several times on both sides."""
    wrong = _Wrong()
    _by_key(wrong, expected, actual)
    return wrong.of(sum(map(len, expected.values())), sum(map(len, actual.values())), 0)


def compare_appended(
    orders: Mapping[RecordId, MixedOrder], actual: Mapping[Hashable, list[Row]], dead: Mapping[RecordId, int]
) -> Comparison:
    """Every order is a row, or where Postgres refuses it a dead letter, once."""
    wrong, good = _Wrong(), dict[Hashable, list[Row]]()
    for place, order in orders.items():
        if not order.is_bad:
            good.setdefault(order.id, []).append((order.id, order.account, order.amount, order.at))
        elif place not in dead:
            wrong.add("lost", f"id={order.id} at {_at(place)}")
    _by_key(wrong, good, actual)
    _judge_letters(wrong, orders, dead)
    return wrong.of(len(orders), sum(map(len, actual.values())), sum(dead.values()))


def compare_newest(
    orders: Mapping[RecordId, MixedOrder], actual: Mapping[Hashable, list[Row]], dead: Mapping[RecordId, int]
) -> Comparison:
    """The newest version of every order is its row, unless it is a deletion; of equal versions any.

    What a constraint forbids is refused only where it would have been written: one that was never newer than what was
    there may be nowhere.
    """
    wrong = _Wrong()
    newest: dict[int, tuple[tuple[int, bool], set[Row]]] = {}
    for order in orders.values():
        if order.is_bad:
            continue
        rank = (order.version, order.is_deletion)
        row: Row = (order.id, order.version, order.account, order.amount, order.at)
        before = newest.get(order.id)
        if before is None or rank > before[0]:
            newest[order.id] = (rank, {row})
        elif rank == before[0]:
            before[1].add(row)
    for place, order in orders.items():
        if order.is_bad and place not in dead:
            above = newest.get(order.id)
            if order.has_no_form or above is None or above[0][0] < order.version:
                wrong.add("lost", f"id={order.id} version={order.version} at {_at(place)}")
    right: dict[Hashable, set[Row]] = {key: rows for key, ((_, is_deletion), rows) in newest.items() if not is_deletion}
    for key, rows in right.items():
        there = actual.get(key, [])
        wrong.add("lost", f"id={key}", 1 - len(there))
        wrong.add("duplicated", f"id={key}", len(there) - 1)
        wrong.add("changed", f"id={key}", len(there) == 1 and there[0] not in rows)
    for key in actual.keys() - right.keys():
        wrong.add("unexpected", f"id={key}", len(actual[key]))
    _judge_letters(wrong, orders, dead)
    return wrong.of(len(right), sum(map(len, actual.values())), sum(dead.values()))


def versions_after(
    epochs: Mapping[int, EpochRecord], orders: Mapping[RecordId, MixedOrder]
) -> Iterator[tuple[int, dict[int, int]]]:
    """What a table of versions shows when each of the decided ones of these epochs is in it: the version of each order.

    The range of one that was given up may reach beyond that of the next.
    """
    newest: dict[int, tuple[int, bool]] = {}
    for number, record in sorted(epochs.items()):
        if record.state not in DECIDED:
            continue
        start = dict(record.range.start.items)
        for partition, end in record.range.end.items:
            for offset in range(int(start.get(partition, 0)), int(end)):
                order = orders.get((int(partition.removeprefix(f"{TOPIC}/")), offset))
                if order is not None and not order.is_bad:
                    rank = (order.version, order.is_deletion)
                    newest[order.id] = max(newest.get(order.id, rank), rank)
        yield number, {key: version for key, (version, is_deletion) in newest.items() if not is_deletion}


def _by_key(wrong: _Wrong, expected: Mapping[Hashable, list[Row]], actual: Mapping[Hashable, list[Row]]) -> None:
    for key, rows in expected.items():
        there = actual.get(key, [])
        wrong.add("lost", f"id={key}", len(rows) - len(there))
        wrong.add("duplicated", f"id={key}", len(there) - len(rows))
        if len(there) == len(rows) and Counter(there) != Counter(rows):
            wrong.add("changed", f"id={key}", len(rows))
    for key in actual.keys() - expected.keys():
        wrong.add("unexpected", f"id={key}", len(actual[key]))


def _judge_letters(wrong: _Wrong, orders: Mapping[RecordId, MixedOrder], dead: Mapping[RecordId, int]) -> None:
    for place, times in dead.items():
        order = orders.get(place)
        if order is None or not order.is_bad:
            wrong.add("unexpected", f"dead letter from {_at(place)}", times)
        else:
            wrong.add("duplicated", f"dead letter from {_at(place)}", times - 1)


def _at(place: RecordId) -> str:
    return f"{TOPIC}/{place[0]} offset {place[1]}"
