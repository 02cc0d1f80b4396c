"""What is asked of an operator's state, and answered.

A question is a line of JSON (`Question`), and behind it an Arrow stream of the keys; an answer a line of JSON, and an
Arrow stream of rows. Nothing of it is code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from onefold.core.errors import ConfigError
from onefold.engine.logics.expiring_logic import ExpiringLogic
from onefold.engine.logics.logic import EventTimed, Logic
from onefold.engine.queries.undo import QueryableBackend, StateMoment
from onefold.engine.queries.views import View, views_of
from onefold.engine.state.columns.block_codec import from_stream, to_stream
from onefold.flow.graph.nodes import Graph, Node

Views = tuple[QueryableBackend, Mapping[str, View]]  # of one operator in one subtask


@dataclass(frozen=True, slots=True)
class Question:
    """Of the state of an operator, and of which view. Without keys: of at most `limit`, whichever they are."""

    uid: str
    state: str
    is_committed: bool
    limit: int | None = None


def packed(head: Mapping[str, Any], rows: pa.RecordBatch | None) -> bytes:
    return json.dumps(head).encode() + b"\n" + (b"" if rows is None else to_stream(rows).to_pybytes())


def unpacked(data: bytes | bytearray) -> tuple[dict[str, Any], pa.RecordBatch | None]:
    """Raises ValueError for what `packed` has not made, and DataLoss for rows that it has not."""
    head, _, rows = bytes(data).partition(b"\n")
    found = json.loads(head)
    if not isinstance(found, dict):
        raise ValueError(f"{found!r:.100} is no head")  # noqa: TRY004  # of the bytes
    return found, from_stream(rows) if rows else None


def answer(
    views: Mapping[str, Views], question: Question, keys: pa.RecordBatch | None
) -> tuple[StateMoment, pa.RecordBatch]:
    """The rows, and the epoch of which they are. Raises ConfigError for a state that there is not."""
    backend, by_state = views.get(question.uid, (None, {}))
    if backend is None or question.state not in by_state:
        raise ConfigError("state-unknown", f"no state {question.state!r} of {question.uid!r} can be asked for here")
    view = by_state[question.state]
    if keys is None:
        keys = view.some(question.limit or 0)
    return backend.moment(question.is_committed), view.get(keys, question.is_committed)


def queryable(graph: Graph, node: Node, logic: Logic, backend: QueryableBackend) -> Views:
    """Once the node's logic has its tables and its clock of the backend."""

    def watermark_us() -> int | None:
        status = logic.clock() if isinstance(logic, EventTimed) else None
        return None if status is None else status.watermark_us

    backend.begin(watermark_us, lambda: logic.now_ms if isinstance(logic, ExpiringLogic) else 0)
    return backend, views_of(graph, node, backend)
