"""State of a flow that comes to Spark with a savepoint, and that goes from Spark into one.

Spark takes initial state in the first batch of a new checkpoint, a row at a time; and gives all that a checkpoint has
of a batch as a table (its sources `state-metadata` and `statestore`). What is in the rows is what SparkTables has
written, or would write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, cast

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from onefold.clients.files import FileSystems
from onefold.core.errors import CheckpointMismatch, ConfigError, DataLoss, Retriable
from onefold.core.moves import MoveNote
from onefold.core.values.plain import plain, shown_url
from onefold.engine.dataflow.chains import Chain, Plan
from onefold.engine.logics.event_time import CLOCKS
from onefold.engine.savepoints.exporting import columns_of, mark_of, names_of
from onefold.engine.savepoints.importing import Part, take_all
from onefold.engine.savepoints.reading import SavepointReader
from onefold.engine.savepoints.saved_tables import Names, SavedTable, in_parts, table_of_entries, tables_of_blocks
from onefold.engine.savepoints.savepoint import find
from onefold.engine.state.arrow_entries import Entries
from onefold.engine.state.codec import decode
from onefold.engine.state.columns.block_codec import conformed, from_stream
from onefold.engine.state.columns.keyed_rows import KeyedRows
from onefold.engine.state.sharded_tables import FlatTable
from onefold.engine.state.snapshot import Wanted
from onefold.engine.state.state_backend import EXPIRY, BlockId, Key, StateKind, StateSpec, Value
from onefold.engine.workers.describing import described
from onefold.flow.time.clocks import END, WATERMARK
from onefold.spark.flows.buckets import entries_of
from onefold.spark.flows.packing import name_of
from onefold.spark.flows.state import LISTS, SparkTables, name_of_state
from onefold.store.job.session import Session

INITIAL = pa.schema(
    [
        ("chain", pa.string()),
        ("subtask", pa.int32()),
        ("state", pa.string()),
        ("key", pa.binary()),
        ("entries", pa.binary()),
    ]
)
_TOLD = "$told"  # which timers Spark has
Entry = tuple[int, bytes, bytes]
"""Its key group, its key, and what is kept of that."""


class _Map:
    """A MapState of Spark's, in memory."""

    def __init__(self) -> None:
        self.entries: dict[tuple[bytes], tuple[bytes]] = {}
        self.getValue = self.entries.get
        self.iterator = self.entries.items

    def exists(self) -> bool:
        return bool(self.entries)

    def updateValue(self, key: tuple[bytes], value: tuple[bytes]) -> None:
        self.entries[key] = value


class _Handle:
    def __init__(self) -> None:
        self.maps: dict[str, _Map] = {}

    def getMapState(self, name: str, *schemas: str) -> _Map:
        del schemas
        return self.maps.setdefault(name, _Map())


def restored_state(session: Session, spark: SparkSession, root: str, plan: Plan) -> DataFrame | None:
    """What a checkpoint is to begin with where a savepoint was restored, until its first batch is done. Raises
    ConfigError where the savepoint is not there any more."""
    last, moves = session.facts().last, session.store.moves(session.name)
    state = MoveNote.of(moves[-1]).state if moves else None
    if state is None or last is None or moves[-1].epoch < last.epoch - 1:
        return None
    files = FileSystems(lambda: spark)
    if any(name.isdecimal() for name in files.names(f"{root}/commits")):
        return None
    place, digest = state
    folder, _, name = place.rpartition("/")
    savepoint = find(files.of(place), folder, name) if files.of(place).exists(place) else None
    if savepoint is None or savepoint.digest != digest:
        raise ConfigError(
            "savepoint-needed",
            f"flow {session.name!r} is to begin on Spark with the state of the savepoint {shown_url(place)}, until its"
            f" first batch is done, and {'it is gone' if savepoint is None else 'another one is there now'}. Nothing"
            " was written. Put it back, or restore another one",
        )
    reader = SavepointReader(files.of(place), place, savepoint)
    now: dict[str, list[SavedTable]] = {}
    for each in reader.as_now(plan):
        now.setdefault(each.spec.uid, []).append(each)
    return spark.createDataFrame(initial_state(plan, now)) if now else None


def initial_state(plan: Plan, tables: Mapping[str, Iterable[SavedTable]]) -> pa.Table:
    """Rows of INITIAL: what each key group of each operator has at first."""
    rows = [row for uid, chain in plan.by_uid.items() if uid in tables for row in _packed(plan, chain, tables[uid])]
    columns = map(list, zip(*rows, strict=True)) if rows else ([] for _ in INITIAL)
    return pa.table([*columns], schema=INITIAL)


def _packed(plan: Plan, chain: Chain, tables: Iterable[SavedTable]) -> Iterator[tuple[Any, ...]]:
    most = plan.graph.max_parallelism
    handles = [_Handle() for _ in range(most)]
    groups = [SparkTables(cast(Any, handle)) for handle in handles]
    for of in groups:
        of.begin()
    parts = [Part(of, Wanted(range(at, at + 1), most)) for at, of in enumerate(groups)]
    lists = take_all(tables, parts)
    for at, (handle, of) in enumerate(zip(handles, groups, strict=True)):
        for spec, by_subtask in lists.items():
            if spec.kind is StateKind.CLOCKS:
                of.operator(spec, lambda values=by_subtask[0]: values)  # type: ignore[misc]  # a default cannot be inferred
        of.store()
        for name, state in handle.maps.items():
            for (key,), (entries,) in state.entries.items():
                yield name_of(chain), at, name, key, entries


def extracted(
    spark: SparkSession, root: str, batch_id: int, plan: Plan, uid: str | None = None
) -> Iterator[SavedTable]:
    """All state that the checkpoint has after that batch, or that of one operator. Raises DataLoss where it has none of
    what it kept, Retriable where Spark does not read it."""
    try:
        yield from _extracted(spark, root, batch_id, plan, uid)
    except (PySparkException, Py4JError) as error:
        said = str(error.java_exception if isinstance(error, Py4JJavaError) else error).partition("\n")[0]
        raise Retriable(
            "state-unreadable",
            f"Spark does not read the state in the checkpoint {shown_url(root)}: {plain(said)}. Nothing was written."
            " Try again; where files of it are gone, put them back from a copy",
        ) from error


def _extracted(spark: SparkSession, root: str, batch_id: int, plan: Plan, uid: str | None) -> Iterator[SavedTable]:
    _ = spark.streams.active  # 4.2.0 reads no state in a session that has never looked for queries
    by_uid = plan.by_uid
    operators = spark.read.format("state-metadata").option("path", root).load().collect()
    names_of_each = {}
    for operator in {row.operatorId for row in operators}:
        found = _states_of(row for row in operators if row.operatorId == operator)
        names_of_each[operator] = [name for name in found if uid in (None, spec_of(name, by_uid).uid)]
    heads = [chain.head for mine, chain in by_uid.items() if uid in (None, mine)]
    if not any(names_of_each.values()) and any(described(plan.graph, head).states for head in heads):
        raise DataLoss(
            "state-file-missing",
            f"the checkpoint {shown_url(root)} has no state of {', '.join(str(head.uid) for head in heads)}, which it"
            " kept: its folder `state` is not whole. Nothing was written. Put it back from a copy",
        )
    yield from (mark_of(plan.graph, head) for head in heads)
    for operator, names in names_of_each.items():
        options = {"path": root, "batchId": batch_id, "operatorId": operator}
        yield from saved_tables(plan, names, partial(_read, spark, options))


def saved_tables(plan: Plan, names: Iterable[str], read: Callable[[str], Iterable[Entry]]) -> Iterator[SavedTable]:
    """Of states that Spark has under these names, of which `read` gives the entries. Raises CheckpointMismatch where
    times to live have come or gone, or have another clock, since a key group had its turn."""
    by_uid = plan.by_uid
    timed: dict[str, dict[int, dict[str, str]]] = {}  # of each operator and key group, the clocks of its states
    for spec in sorted((spec_of(name, by_uid) for name in names), key=lambda spec: spec.name != LISTS):
        chain, entries = by_uid[spec.uid], read(name_of_state(spec))
        if spec.kind is not StateKind.BLOCKS:
            entries = ((group, *entry) for group, *stored in entries for entry in entries_of(*stored))
        if spec.name == LISTS:
            entries = [*entries]
            timed[spec.uid] = {
                group: {name: clock for name, clock, *_ in decode(content).get((EXPIRY,), ())}
                for group, _, content in entries
            }
        yield from _tables_of(plan, chain, spec, _timed_as_now(chain, spec, entries, timed.get(spec.uid, {})))


def _timed_as_now(
    chain: Chain, spec: StateSpec, entries: Iterable[Entry], timed: Mapping[int, Mapping[str, str]]
) -> Iterator[Entry]:
    ttl = chain.head.expires.get(spec.name)
    for entry in entries:
        if timed.get(entry[0], {}).get(spec.name) != (None if ttl is None else ttl.clock):
            raise CheckpointMismatch(
                "state-ttl-changed",
                f"on Spark a key group of the operator {spec.uid!r} has kept the state {spec.name!r} with another time"
                " to live, or without, and has had no turn since that was changed: its entries cannot go into a"
                " savepoint. Nothing was written. Run the flow until each key group has had rows, or change the time to"
                " live back",
            )
        yield entry


def _tables_of(plan: Plan, chain: Chain, spec: StateSpec, entries: Iterable[Entry]) -> Iterator[SavedTable]:
    """Of one state."""
    schema, width = columns_of(plan.graph, chain.head).get((spec.uid, spec.name), (None, 0))
    if spec.name == LISTS:
        yield from _lists(spec, entries)
    elif schema is not None and spec.kind is StateKind.BLOCKS:
        for table in tables_of_blocks(sorted(_blocks(entries, schema), key=lambda block: block[0])):
            yield SavedTable(spec, table, width)
    elif schema is not None:
        table = FlatTable()
        for key, _, value in _unpacked(entries):
            table.put(key, value)
        for states in KeyedRows(table, schema, width).scan():
            yield SavedTable(StateSpec(spec.uid, spec.name, StateKind.ROWS), pa.Table.from_batches([states]), width)
    else:
        names = names_of(described(plan.graph, chain.head), spec)
        for some in in_parts(_unpacked(entries)):
            yield SavedTable(spec, table_of_entries(spec.kind, names, Entries(*zip(*some, strict=True))))


def _unpacked(entries: Iterable[Entry]) -> Iterator[tuple[Key, Key, Value]]:
    for _, packed, content in entries:
        key = decode(packed)
        for sub, value in decode(content).items():
            yield key, sub, value


def _blocks(entries: Iterable[Entry], schema: pa.Schema) -> Iterator[tuple[BlockId, pa.RecordBatch]]:
    for _, packed, content in entries:
        at = decode(packed)
        if at != "ids":
            yield at, conformed([from_stream(content)], schema)


def _lists(spec: StateSpec, entries: Iterable[Entry]) -> Iterator[SavedTable]:
    """Those that all key groups have alike: of that which has come furthest, since Spark calls a key group only where
    something comes to it, or one of its timers."""
    found = ({name: values for (name,), values in decode(content).items()} for _, _, content in entries)
    first = max(found, key=_furthest, default={})
    for name, values in first.items():
        if name != _TOLD:
            places = [(0, at) for at in range(len(values))]
            of = Entries(places, [()] * len(values), [tuple(value) for value in values])
            yield SavedTable(
                StateSpec(spec.uid, name, StateKind.CLOCKS), table_of_entries(StateKind.CLOCKS, Names(), of)
            )


def _furthest(lists: Mapping[str, Any]) -> tuple[int, int]:
    """When its partitions had records last, and the watermark."""
    rows = lists.get(CLOCKS, ())
    known = [us for uid, _, us, _ in rows if uid == WATERMARK and us is not None]
    return max((active_ms for *_, active_ms in rows if active_ms is not None), default=0), max(known, default=-END)


def _read(spark: SparkSession, options: Mapping[str, Any], name: str) -> Iterator[Entry]:
    """The entries of the state of that name."""
    rows = spark.read.format("statestore").options(**options, stateVarName=name).load()
    found = rows.selectExpr("key.subtask AS subtask", "user_map_key.key AS k", "user_map_value.entries AS v")
    for row in found.toLocalIterator():
        yield row.subtask, bytes(row.k), bytes(row.v)


def spec_of(name: str, uids: Iterable[str]) -> StateSpec:
    """The state that has that name at Spark (`name_of_state`)."""
    for uid in sorted(uids, key=len, reverse=True):
        kind, _, of = name.removeprefix(f"{uid}/").partition("/")
        if name.startswith(f"{uid}/") and kind in {each.value for each in StateKind}:
            return StateSpec(uid, of, StateKind(kind))
    raise CheckpointMismatch(
        "state-operator-missing",
        f"the checkpoint has the state {name!r}, of an operator that the flow does not have. Nothing was written. Give"
        " the operator its uid back",
    )


def _states_of(rows: Iterable[Any]) -> list[str]:
    """The names of an operator's states that are maps of ours."""
    names: dict[str, None] = {}
    for row in rows:
        properties = row.operatorProperties
        names |= dict.fromkeys(re.findall(r'"stateName":"((?:[^"\\]|\\.)*)"', properties))
    return [json.loads(f'"{name}"') for name in names if not name.startswith("$")]
