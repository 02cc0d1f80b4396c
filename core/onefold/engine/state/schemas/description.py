"""What an operator keeps, as its snapshots describe it: JSON, in which schemas are as Arrow writes them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import pyarrow as pa

from onefold.core.values.checked import checked
from onefold.engine.state.codec import unreadable
from onefold.engine.state.state_backend import StateKind, StateSpec

NOTHING = pa.schema([])
_KINDS = {kind.value: kind for kind in StateKind if kind is not StateKind.OPERATOR} | {
    "bytes": StateKind.VALUE,
    "operator list": StateKind.OPERATOR,
    "broadcast": StateKind.OPERATOR,
}


@dataclass(frozen=True, slots=True)
class AggregateDescription:
    """`keeps` is what it is of, as `Aggregate.keeps` has it; `columns` are those of its state."""

    name: str
    keeps: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StateDescription:
    """One state. `kind` is that of a StateKind, but for what an operator keeps of no key ("operator list",
    "broadcast"), and "bytes". `value` are the columns of its values: of blocks and rows those behind the operator's
    key. `key` are a map's own; with timers and clocks there are neither."""

    name: str
    kind: str
    value: pa.Schema = NOTHING
    key: pa.Schema = NOTHING

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(self.kind)

    def spec(self, uid: str) -> StateSpec:
        return StateSpec(uid, self.name, _KINDS[self.kind])


@dataclass(frozen=True, slots=True)
class OperatorDescription:
    """`kind` is what users call it: aggregate, window, join, ... `settings` are the further ones that its state goes
    by, in words that differ where it is other state."""

    uid: str
    kind: str
    key: pa.Schema
    settings: Mapping[str, str] = field(default_factory=dict)
    aggregates: tuple[AggregateDescription, ...] = ()
    states: tuple[StateDescription, ...] = ()

    def to_json(self) -> str:
        values = asdict(self)
        values["key"] = _text(self.key)
        for state, of in zip(values["states"], self.states, strict=True):
            state |= {"value": _text(of.value), "key": _text(of.key)}
        return json.dumps(values)

    @classmethod
    def from_json(cls, text: str) -> OperatorDescription:
        """Raises DataLoss for what `to_json` has not made."""
        try:
            values = dict(json.loads(text))
            states = [
                {**each, "value": _schema(each["value"]), "key": _schema(each["key"])} for each in values["states"]
            ]
            aggregates = [{**each, "columns": (*each["columns"],)} for each in values["aggregates"]]
            values["key"] = _schema(values["key"])
            values["states"] = tuple(checked(StateDescription, each) for each in states)
            values["aggregates"] = tuple(checked(AggregateDescription, each) for each in aggregates)
            return checked(cls, values)
        except (ValueError, TypeError, KeyError, RecursionError, pa.ArrowException, OSError) as error:
            raise unreadable() from error


def _text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.remove_metadata().serialize().to_pybytes()).decode()


def _schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
