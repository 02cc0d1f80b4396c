"""The states that a processor asks for in its `init`, learned when the flow is built, before there are any records."""

from __future__ import annotations

import copy
import enum
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa

from onefold.core.errors import ConfigError
from onefold.core.values.ddl import schema_of
from onefold.core.values.tuples import is_key
from onefold.flow.processing.processor import BroadcastProcessor, Schema, StatefulProcessor
from onefold.flow.time.ttl import Ttl, check_ttl

DEPTH_MAX = 50  # of what state keeps, with room for what expressions make of it


class DeclaredKind(enum.Enum):
    VALUE = "value"
    LIST = "list"
    MAP = "map"
    BYTES = "bytes"
    OPERATOR_SPLIT = "operator list, split"  # from here on: not on Spark
    OPERATOR_UNION = "operator list, union"
    BROADCAST = "broadcast"
    DELETED = "of earlier code, deleted"


@dataclass(frozen=True, slots=True)
class StateDeclaration:
    """One state of a processor. `key_schema` is a map's own key's; `schema` is None for bytes."""

    name: str
    kind: DeclaredKind
    schema: pa.Schema | None
    key_schema: pa.Schema | None = None
    ttl: Ttl | None = None


def as_schema(given: Schema, label: str) -> pa.Schema:
    """The schema, of a DDL text too. Raises ConfigError for what is none, and for a column that is named twice."""
    schema = schema_of(given) if isinstance(given, str) else given
    if not isinstance(schema, pa.Schema):
        raise ConfigError(
            "schema-missing",
            f"{label} has {given!r:.100}: give a pyarrow.Schema, or a text as in 'id long, amount decimal(12,2)'",
        )
    if twice := next((name for name in schema.names if schema.names.count(name) > 1), None):
        raise ConfigError("column-name-twice", f"{label} has two columns {twice!r}: rename one")
    if deep := next((field.name for field in schema if _is_deeper(field.type, DEPTH_MAX)), None):
        raise ConfigError(
            "schema-too-deep",
            f"{label} has {deep!r} of a type of more than {DEPTH_MAX} lists, structs and maps within each other: take a"
            " flatter one, or keep it as text",
        )
    return schema


def _is_deeper(kind: pa.DataType, than: int) -> bool:
    return than < 0 or any(_is_deeper(kind.field(at).type, than - 1) for at in range(kind.num_fields))


def as_key_schema(given: Schema, label: str) -> pa.Schema:
    """As `as_schema`, of a map's keys."""
    schema = as_schema(given, label)
    if wrong := next((field for field in schema if not is_key(field.type)), None):
        raise ConfigError(
            "map-key-type",
            f"{label} has keys with {wrong.name!r} of type {wrong.type}: floats are no keys, since some are equal and"
            " differ, and neither are maps. Name another type, such as a decimal or a string",
        )
    return schema


def declared_states(processor: StatefulProcessor, label: str) -> tuple[StateDeclaration, ...]:
    """What `init` of a copy asks for. Raises ConfigError where it asks for two states of one name, or uses one."""
    made = copy.copy(processor)
    handle = _Declaring(label, isinstance(processor, BroadcastProcessor))
    made.init(handle)
    made.close()
    return tuple(handle.found.values())


class _Declaring:
    """The handle that `init` gets for that."""

    def __init__(self, label: str, has_broadcast: bool) -> None:
        self._label = label
        self._has_broadcast = has_broadcast
        self.found: dict[str, StateDeclaration] = {}

    def getValueState(
        self, stateName: str, schema: Schema, ttlDurationMs: int | None = None, ttl: Ttl | None = None
    ) -> Any:
        return self._declare(stateName, DeclaredKind.VALUE, schema, None, ttlDurationMs, ttl)

    def getListState(
        self, stateName: str, schema: Schema, ttlDurationMs: int | None = None, ttl: Ttl | None = None
    ) -> Any:
        return self._declare(stateName, DeclaredKind.LIST, schema, None, ttlDurationMs, ttl)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Schema,
        valueSchema: Schema,
        ttlDurationMs: int | None = None,
        ttl: Ttl | None = None,
    ) -> Any:
        return self._declare(stateName, DeclaredKind.MAP, valueSchema, userKeySchema, ttlDurationMs, ttl)

    def getBytesState(self, stateName: str, ttlDurationMs: int | None = None, ttl: Ttl | None = None) -> Any:
        return self._declare(stateName, DeclaredKind.BYTES, None, None, ttlDurationMs, ttl)

    def getOperatorListState(self, stateName: str, schema: Schema, redistribution: str = "split") -> Any:
        if redistribution not in ("split", "union"):
            raise ConfigError(
                "option-value", f"{self._label}: redistribution={redistribution!r} of {stateName!r} is split or union"
            )
        kinds = {"split": DeclaredKind.OPERATOR_SPLIT, "union": DeclaredKind.OPERATOR_UNION}
        return self._declare(stateName, kinds[redistribution], schema)

    def getBroadcastState(self, stateName: str, keySchema: Schema, valueSchema: Schema) -> Any:
        if not self._has_broadcast:
            raise ConfigError(
                "broadcast-state-unconnected",
                f"{self._label} asks for the broadcast state {stateName!r}, and has no broadcast stream: subclass"
                " BroadcastProcessor, and use keyed.connect(other.broadcast()).process(...)",
            )
        return self._declare(stateName, DeclaredKind.BROADCAST, valueSchema, keySchema)

    def deleteIfExists(self, stateName: str) -> None:
        self.found.pop(stateName, None)
        self.found[f"$deleted {stateName}"] = StateDeclaration(stateName, DeclaredKind.DELETED, None)

    def registerTimer(self, expiryTimestampMs: int) -> NoReturn:
        raise self._too_early(f"registerTimer({expiryTimestampMs})")

    def deleteTimer(self, expiryTimestampMs: int) -> NoReturn:
        raise self._too_early(f"deleteTimer({expiryTimestampMs})")

    def listTimers(self) -> NoReturn:
        raise self._too_early("listTimers()")

    def _declare(
        self,
        name: str,
        kind: DeclaredKind,
        schema: Schema | None,
        key_schema: Schema | None = None,
        ttl_ms: int | None = None,
        ttl: Ttl | None = None,
    ) -> Any:
        label = f"the state {name!r} of {self._label}"
        if name in self.found:
            raise ConfigError("state-name-twice", f"{self._label} asks for two states {name!r}: rename one")
        self.found[name] = StateDeclaration(
            name,
            kind,
            None if schema is None else as_schema(schema, label),
            None if key_schema is None else as_key_schema(key_schema, label),
            check_ttl(label, ttl, ttl_ms),
        )
        return _Unusable(self, name)

    def _too_early(self, what: str) -> ConfigError:
        return ConfigError(
            "state-used-early",
            f"{self._label} calls {what} in init, where there is no key: ask for states there, and use them in"
            " handleInputRows",
        )


class _Unusable:
    """In the place of a state, until there are records."""

    def __init__(self, handle: _Declaring, name: str) -> None:
        self._handle = handle
        self._name = name

    def __getattr__(self, method: str) -> NoReturn:
        if method.startswith("__"):
            raise AttributeError(method)
        raise self._handle._too_early(f"{self._name}.{method}")
