"""Drops the rows whose id was seen: by the highest number of each source, or by all ids of a span of time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.checks import present, require
from onefold.core.contract import TaskId
from onefold.core.errors import BadRecord
from onefold.core.values.ids import IdsWithin, called
from onefold.engine.key_groups import groups_of
from onefold.engine.logics.logic import BaseLogic, Input, Output
from onefold.engine.state.state_backend import Key, StateKind, StateSpec, StateTables
from onefold.flow.graph.nodes import Node
from onefold.flow.graph.operators import Deduplicating
from onefold.flow.processing.rows import dicts_of, values_of

EXPIRED_MIN = 10_000  # ids that an epoch forgets, if so many are due
_ORDERED = r"(?s)^(?P<source>.*):(?P<number>[0-9]{1,18})$"
_NONE = -1
TURNS = 3

Numbers = np.ndarray[Any, Any]


class OrderedIdsLogic(BaseLogic):
    """Keeps the rows whose number is above all before it of its source, in their partition. Which these are depends on
    each partition's rows and their order alone, and not on how they are cut into batches and epochs."""

    def __init__(self, node: Node, operator: Deduplicating, backend: StateTables) -> None:
        self._node, self._operator = node, operator
        self._names = present(node.schema, "it gives rows").names
        uid = present(node.uid, f"{node.name} keeps state")
        self._highest = backend.table(StateSpec(uid, "highest", StateKind.MAP))

    def take(self, batch: Input, port: int) -> Iterator[Output]:
        del port
        assert isinstance(batch, pa.RecordBatch)
        sources, numbers = self._parts(batch)
        key = batch.select(self._operator.key)
        first, codes = _coded([*key.columns, sources])
        order = np.argsort(codes, kind="stable")
        self._check_order(batch, codes, order)
        places = [*zip(values_of(key.take(first)), sources.take(first).to_pylist(), strict=True)]
        found = [self._highest.get(of, (source,)) for of, source in places]
        before = np.array([_NONE if value is None else value[0] for value in found], np.int64)
        is_new, highest = above(numbers, codes, order, before)
        for number in np.flatnonzero(highest > before):
            of, source = places[number]
            self._highest.put(of, (int(highest[number]),), (source,))
        yield None, batch.select(self._names).filter(pa.array(is_new))

    def _parts(self, batch: pa.RecordBatch) -> tuple[pa.Array, Numbers]:
        """The source and the number of each row's id. Raises BadRecord for one that is missing or malformed."""
        columns = [batch.column(name) for name in self._operator.id]
        if len(columns) == 1:
            parts = pc.extract_regex(columns[0].cast(pa.binary()), pattern=_ORDERED)
            is_good = parts.is_valid()
            sources, numbers = pc.struct_field(parts, "source"), pc.struct_field(parts, "number")
            numbers = numbers.cast(pa.string()).cast(pa.int64())
        else:
            sources, numbers = columns[0].cast(pa.binary()), columns[1].cast(pa.int64(), safe=False)
            is_good = pc.and_(sources.is_valid(), pc.fill_null(pc.greater_equal(numbers, 0), False))
        if is_good.false_count:
            row = pc.index(is_good, False).as_py()
            found = tuple(column[row].as_py() for column in columns)
            value = found if len(found) > 1 else found[0]
            raise BadRecord(
                "id-not-usable",
                f"{_where(self._node, self._operator, batch, row)}: {called(self._operator.ids)}"
                f" {'is missing' if value is None else f'is {value!r}'}, and an ordered id is a text SOURCE:NUMBER such"
                " as b'orders/3:1700', or a source and a number from 0. Name the place where the ids are"
                " (OrderedIds(id=...)), filter such records out first, or deduplicate ids of other forms by IdsWithin",
            )
        return sources, numbers.to_numpy()

    def _check_order(self, batch: pa.RecordBatch, codes: Numbers, order: Numbers) -> None:
        numbers = batch.column(self._operator.place[-1]).to_numpy()[order]
        is_next = (np.diff(numbers) > 0) | (np.diff(codes[order]) > 0)
        require(is_next.all(), f"the rows of a partition come to {self._node.name} in its order, each once")


class IdsWithinLogic(BaseLogic):
    """Keeps the first row of each id, and one that comes the span or longer after that. The clock is the epoch's time.

    `came` says what came when, so that it is forgotten: lists of ids of one key group, under one of them. Its tables
    take turns, each for as long as the span, so that one has nothing but what is older.
    """

    def __init__(self, node: Node, operator: Deduplicating, backend: StateTables, max_parallelism: int) -> None:
        assert isinstance(operator.ids, IdsWithin)
        self._node, self._operator, self._max_parallelism = node, operator, max_parallelism
        self._id, self._span_ms, self._now_ms = operator.id[0], operator.ids.span_ms, 0
        self._names = present(node.schema, "it gives rows").names
        uid = present(node.uid, f"{node.name} keeps state")
        self._seen = backend.table(StateSpec(uid, "seen", StateKind.VALUE))
        self._came = [backend.table(StateSpec(uid, f"came {turn}", StateKind.MAP)) for turn in range(TURNS)]
        self._new: list[pa.Array] = []  # in this epoch

    def restored(self) -> None:
        """It keeps nothing beside its tables."""

    def begin(self, task: TaskId) -> None:
        self._now_ms = task.timestamp_ms

    def take(self, batch: Input, port: int) -> Iterator[Output]:
        del port
        assert isinstance(batch, pa.RecordBatch)
        self._check(batch)
        first: dict[Key, int] = {}
        for row, key in enumerate(values_of(batch.select([self._id]))):
            first.setdefault(key, row)
        keys = [*first]
        new = [key for key, seen in zip(keys, self._seen.get_many(keys), strict=True) if self._is_past(seen)]
        self._seen.put_many(new, [(self._now_ms,)] * len(new))
        rows = batch.take(pa.array([first[key] for key in new], pa.int64()))
        self._new.append(rows.column(self._id))
        yield None, rows.select(self._names)

    def flush(self, task: TaskId) -> Iterator[Output]:
        del task
        turn, count = self._now_ms // self._span_ms, sum(map(len, self._new))
        if count:
            self._note(pa.concat_arrays(self._new), turn % TURNS)
            self._new = []
        self._forget((turn + 1) % TURNS, EXPIRED_MIN + 2 * count)  # more than come, so that they get fewer
        return iter(())

    def timer_ms(self) -> int | None:
        return None

    def _check(self, batch: pa.RecordBatch) -> None:
        ids = batch.column(self._id)
        is_missing = ids.is_null()
        if _has_length(ids.type):
            is_missing = pc.or_(is_missing, pc.fill_null(pc.equal(pc.binary_length(ids), 0), False))
        if is_missing.true_count:
            where = _where(self._node, self._operator, batch, pc.index(is_missing, True).as_py())
            raise BadRecord(
                "id-not-usable",
                f"{where}: {called(self._operator.ids)} is missing, and every record needs one. Filter such records out"
                " first",
            )

    def _is_past(self, seen: Key | None) -> bool:
        return seen is None or seen[0] + self._span_ms <= self._now_ms

    def _note(self, ids: pa.Array, turn: int) -> None:
        by_group: dict[int, list[Any]] = defaultdict(list)
        groups = groups_of([ids], self._max_parallelism).tolist()
        for (id,), group in zip(values_of(pa.record_batch([ids], [self._id])), groups, strict=True):
            by_group[group].append(id)
        for of in by_group.values():
            self._came[turn].put((of[0],), (of,), (self._now_ms,))

    def _forget(self, turn: int, most: int) -> None:
        """About so many of the ids that are older than the span."""
        due: list[tuple[Key, Key, list[Any]]] = []
        for key, at, (ids,) in self._came[turn].scan():
            if self._is_past(at):
                due.append((key, at, ids))
                most -= len(ids)
            if most <= 0:
                break
        for key, at, ids in due:
            keys = [(id,) for id in ids]
            for each, seen in zip(keys, self._seen.get_many(keys), strict=True):
                if seen is not None and self._is_past(seen):  # it may have come again since
                    self._seen.delete(each)
            self._came[turn].delete(key, at)


def above(numbers: Numbers, codes: Numbers, order: Numbers, before: Numbers) -> tuple[Numbers, Numbers]:
    """Which rows have a number above all before them of their code, and the highest number of each code with them.

    Codes count from 0, and each is there; `before` is the highest number so far of each. `order` sorts the rows by code
    and keeps the order within. One running maximum over all codes finds the greatest so far within each: it runs over
    ranks, with a step between codes that no rank reaches.
    """
    by_code = codes[order]
    starts = np.flatnonzero(np.diff(by_code, prepend=-1))
    heights = np.insert(numbers[order], starts, before)
    ranks = np.unique(heights, return_inverse=True)[1].astype(np.int64)
    climbing = np.insert(by_code, starts, by_code[starts]).astype(np.int64) * len(heights) + ranks
    rises = climbing[1:] > np.maximum.accumulate(climbing)[:-1]
    is_row = np.ones(len(heights), bool)
    is_row[starts + np.arange(len(starts))] = False
    is_new = np.empty(len(numbers), bool)
    is_new[order] = rises[is_row[1:]]
    return is_new, np.maximum(np.maximum.reduceat(numbers[order], starts), before)


def _coded(columns: list[pa.Array]) -> tuple[Numbers, Numbers]:
    """The first row of each combination of values, and for each row the number of its combination."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        encoded = column.dictionary_encode()
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
    _, first, numbers = np.unique(codes, return_index=True, return_inverse=True)
    return first, numbers


def _has_length(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_string(kind) or t.is_large_string(kind) or t.is_binary(kind) or t.is_large_binary(kind))


def _where(node: Node, operator: Deduplicating, batch: pa.RecordBatch, row: int) -> str:
    """Which record a row is of."""
    if not operator.place:
        (found,) = dicts_of(batch.slice(row, 1).select(present(node.schema, "it gives rows").names))
        return f"{node.name}, the row {found!r:.200}"
    *partition, offset = (batch.column(name)[row].as_py() for name in operator.place)
    return f"{'/'.join(map(str, partition))} offset {offset}"
