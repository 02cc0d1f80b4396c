"""Reads the state of a flow from another process: of one that runs by asking its workers, else from its snapshots."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import pyarrow as pa

from onefold.core.errors import ConfigError, OnefoldError, Retriable, named
from onefold.core.values.names import near
from onefold.core.waiting import Wait
from onefold.engine.key_groups import groups_of, subtask_of
from onefold.engine.queries.place import Asked, asked, told
from onefold.engine.queries.questions import Question, Views, answer, packed, unpacked
from onefold.engine.queries.undo import StateMoment
from onefold.engine.state.storage import Storage
from onefold.flow.flow import Flow
from onefold.flow.graph.nodes import Graph
from onefold.flow.processing.rows import values_of
from onefold.flow.time.told import moment

ViewOf = Literal["committed", "live"]
LIMIT_MAX = 10_000
ANSWER_S = 5.0  # for a worker between two of its steps
_HEADER = struct.Struct("<BQ")
_BYTES_MAX = 1 << 30


@dataclass(frozen=True, slots=True)
class StateAnswer:
    """Rows of the key's columns and the state's, as they were at the end of an epoch.

    batch         none where the key has nothing; several of a list, a map, or windows
    epoch         committed: it is complete, and no restart takes it back. Live: the last one that is in it as a whole;
                  parts of the next may be, and may be taken back
    timestamp_ms  the epoch's time, since 1970; 0 for a live one that is not complete, and before the first
    watermark     of the operator; None where it does not go by event time, it is not known yet, or its sources have
                  ended
    """

    batch: pa.RecordBatch
    view: ViewOf
    epoch: int
    timestamp_ms: int
    watermark: datetime | None

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [dict(zip(self.batch.schema.names, row, strict=True)) for row in values_of(self.batch)]

    @property
    def columns(self) -> dict[str, Any] | None:
        """The first row; None where there is none."""
        return next(iter(self.rows), None)

    def plain(self) -> dict[str, Any]:
        """As JSON has it: times in ISO 8601, bytes in hex, decimals and what else JSON has not as texts."""
        at = {"epoch": self.epoch, "timestamp_ms": self.timestamp_ms, "watermark": self.watermark, "view": self.view}
        text = json.dumps({"rows": self.rows, **at}, default=_text)
        found: dict[str, Any] = json.loads(text, parse_constant=str)
        return found


class Queried(Protocol):
    """What a pipeline is to a reader."""

    @property
    def name(self) -> str: ...

    @property
    def checkpoint(self) -> str: ...

    @property
    def graph(self) -> Graph: ...

    def check_state(self) -> None:
        """Raises ConfigError where nobody can be asked while it runs."""
        ...

    def views(self, uid: str) -> Views:
        """What the operator keeps, where the flow is stopped."""
        ...


class StateReader:
    """Of a pipeline, or of a flow by its checkpoint.

        reader = StateReader(pipeline)
        reader = StateReader("/var/lib/orders", flow="orders")
        reader.get("totals", ("a17",)).columns

    offline  of a stopped flow: read what its last decided epoch left, once, instead of asking its workers; also of
             operators without `queryable=True`, and on Spark. It takes the pipeline, or the `Flow`, and time and memory
             for all of an operator's state
    wait_s   for how long it asks again where workers start, or do not answer

    Raises ConfigError for what cannot be asked for, Retriable where nobody answers.
    """

    def __init__(
        self, of: Queried | str | Path, flow: Flow | str = "", *, offline: bool = False, wait_s: float = 10.0
    ) -> None:
        self._wait_s = wait_s
        if isinstance(of, str | Path):
            name, checkpoint = flow if isinstance(flow, str) else flow.name, str(of)
        else:
            if not offline:
                of.check_state()
            name, checkpoint = of.name, of.checkpoint
        if not name:
            raise ConfigError("option-value", f"StateReader({checkpoint!r}) names no flow: give flow='orders'")
        self._storage, self._of = Storage(checkpoint, name), flow if isinstance(of, str | Path) else of
        self._offline = (
            _Offline(self._graph(), self._views if isinstance(of, str | Path) else of.views) if offline else None
        )

    def get(self, uid: str, key: Sequence[Any], *, state: str = "", view: ViewOf = "committed") -> StateAnswer:
        """Of one key, by the uid of an operator. `state` may be left out where the operator has one."""
        return self.get_many(uid, [key], state=state, view=view)[0]

    def get_many(
        self, uid: str, keys: Sequence[Sequence[Any]], *, state: str = "", view: ViewOf = "committed"
    ) -> list[StateAnswer]:
        """Of each key, in their order. Those of different workers may be of different epochs."""

        def ask(where: _Live | _Offline) -> list[StateAnswer]:
            found, question = _question(where.operators, uid, state, view, None)
            if not keys:
                return []
            batch = _keys(keys, found)
            answers: dict[Any, StateAnswer] = {}
            for mine, (at, rows) in where.ask(question, batch):
                width = len(found.key)
                by_key: dict[Any, list[int]] = {}
                for place, key in enumerate(values_of(rows.select(range(width))) if width else [()] * len(rows)):
                    by_key.setdefault(key, []).append(place)
                for key in values_of(mine) if width else [()]:
                    answers[key] = _answer(rows.take(pa.array(by_key.get(key, []), pa.int64())), view, at)
            return [answers[key] for key in (values_of(batch) if len(found.key) else [()])]

        return self._asking(ask)

    def scan(self, uid: str, *, state: str = "", view: ViewOf = "committed", limit: int = 1_000) -> list[StateAnswer]:
        """At most so many keys of each worker, whichever they are: an answer of each, as each has its own epoch."""
        if not 0 < limit <= LIMIT_MAX:
            raise ConfigError("option-value", f"limit={limit!r:.100} is 1 to {LIMIT_MAX:,} keys")

        def ask(where: _Live | _Offline) -> list[StateAnswer]:
            _, question = _question(where.operators, uid, state, view, limit)
            return [_answer(rows, view, at) for _, (at, rows) in where.ask(question, None)]

        return self._asking(ask)

    def operators(self) -> Mapping[str, Asked]:
        """Those that can be asked now, by their uids; none where the flow does not run."""
        found = self._offline or told(self._storage)
        return {} if found is None else found.operators

    def _graph(self) -> Graph:
        if isinstance(self._of, str):
            raise ConfigError(
                "state-needs-flow",
                "snapshots say nothing of what an operator makes of them: give the pipeline, or"
                " StateReader(checkpoint, flow=flow, offline=True) with the Flow itself",
            )
        return self._of.graph() if isinstance(self._of, Flow) else self._of.graph

    def _views(self, uid: str) -> Views:
        from onefold.engine.asking.snapshots import views_of_snapshots  # with operators and backends

        return views_of_snapshots(self._storage, self._graph(), uid)

    def _asking(self, ask: Any) -> list[StateAnswer]:
        if self._offline is not None:
            return list(ask(self._offline))
        wait = Wait(self._wait_s, 0.02, 0.5)
        while True:
            try:
                return list(ask(_Live(self._storage)))
            except Retriable:
                if not wait.again():
                    raise


class _Live:
    """The workers, as `queries.json` has them now."""

    def __init__(self, storage: Storage) -> None:
        found = told(storage)
        if found is None:
            raise Retriable(
                "state-not-running",
                f"flow {storage.pipeline!r} does not run with {storage.path()} as its checkpoint, or none of its"
                " operators has queryable=True. Start it; or read its last snapshots: StateReader(..., offline=True),"
                " or --offline",
            )
        self._told, self.operators = found, found.operators

    def ask(
        self, question: Question, keys: pa.RecordBatch | None
    ) -> Iterator[tuple[pa.RecordBatch, tuple[StateMoment, pa.RecordBatch]]]:
        """The keys of each worker, and what it answers."""
        sockets, groups = self._told.sockets, self._told.max_parallelism
        if keys is None:
            yield from ((None, _asked(path, question, None)) for path in sockets)
            return
        if not keys.num_columns:  # rows without a key are of key group 0
            yield keys, _asked(sockets[0], question, keys)
            return
        owners = [subtask_of(int(group), len(sockets), groups) for group in groups_of(keys.columns, groups)]
        for owner in sorted(set(owners)):
            mine = keys.filter(pa.array([each == owner for each in owners]))
            yield mine, _asked(sockets[owner], question, mine)


class _Offline:
    """What the last decided epoch left."""

    def __init__(self, graph: Graph, read: Callable[[str], Views]) -> None:
        self._read = read
        self._views: dict[str, Views] = {}
        self.operators = asked(graph)

    def ask(
        self, question: Question, keys: pa.RecordBatch | None
    ) -> Iterator[tuple[Any, tuple[StateMoment, pa.RecordBatch]]]:
        if question.uid not in self._views:
            self._views[question.uid] = self._read(question.uid)
        yield keys, answer(self._views, question, keys)


def _question(
    operators: Mapping[str, Asked], uid: str, state: str, view: str, limit: int | None
) -> tuple[Asked, Question]:
    if uid not in operators:
        raise ConfigError(
            "state-not-queryable",
            f"no operator {uid!r} can be asked for its state{near(uid, operators) or ''}: those that can are"
            f" {', '.join(operators) or 'none'}. Give it queryable=True in the flow, and start that again",
        )
    found = operators[uid]
    if (state or len(found.states) != 1) and state not in found.states:
        raise ConfigError(
            "state-unknown",
            f"the operator {uid!r} has no state {state!r}: name one with state=, of {', '.join(found.states)}",
        )
    if view not in get_args(ViewOf):
        raise ConfigError("option-value", f"view={view!r:.100} is committed or live")
    return found, Question(uid, state or found.states[0], view == "committed", limit)


def _keys(given: Sequence[Sequence[Any]], of: Asked) -> pa.RecordBatch:
    """The keys as the flow has them. Texts are taken for values of other types, as a command line gives them."""
    told, columns = ", ".join(of.columns), []
    for key in given:
        if isinstance(key, str) or len(key) != len(of.key):
            raise ConfigError("state-key", f"{key!r:.200} is no key: give a value of each of its columns, {told}")
    for at, field in enumerate(of.key):
        try:
            columns.append(pa.concat_arrays([_array(key[at], field.type) for key in given]))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise ConfigError("state-key", f"{given!r:.200}: {error}. Give values of {told}") from None
    return pa.RecordBatch.from_arrays(columns, schema=of.key)


def _array(value: Any, kind: pa.DataType) -> pa.Array:
    return pa.array([value]).cast(kind) if isinstance(value, str) else pa.array([value], kind)


def _asked(path: str, question: Question, keys: pa.RecordBatch | None) -> tuple[StateMoment, pa.RecordBatch]:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(ANSWER_S)
            sock.connect(path)
            data = packed(asdict(question), keys)
            sock.sendall(_HEADER.pack(0, len(data)) + data)
            _, length = _HEADER.unpack(_received(sock, _HEADER.size))
            head, rows = unpacked(_received(sock, length))
        if rows is None:
            raise named(head["kind"], head["code"], head["message"]) or ValueError(head)
        return StateMoment(**head), rows
    except OnefoldError:
        raise
    except (OSError, EOFError, ValueError, TypeError, LookupError) as error:
        raise Retriable(
            "state-unanswered",
            f"the worker at {path} does not answer: {error!r}. It starts, is at a long step, or has ended: ask again",
        ) from error


def _received(sock: socket.socket, length: int) -> bytes:
    if length > _BYTES_MAX:
        raise ValueError(f"an answer of {length} bytes")
    found = bytearray()
    while len(found) < length:
        if not (part := sock.recv(min(length - len(found), 1 << 20))):
            raise EOFError("it has closed the connection")
        found += part
    return bytes(found)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)


def _answer(rows: pa.RecordBatch, view: ViewOf, at: StateMoment) -> StateAnswer:
    watermark = None if at.watermark_us is None else moment(at.watermark_us)
    return StateAnswer(rows, view, at.epoch, at.timestamp_ms, watermark)
