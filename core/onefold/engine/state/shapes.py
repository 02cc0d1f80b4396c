"""The shape of a state's values, checked when a processor gives one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onefold.core.errors import ConfigError
from onefold.engine.state.backend import Key, Value
from onefold.flow.declaring import as_schema
from onefold.flow.processor import Schema

__all__ = ["Shape"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Of the state `name` of the operator `uid`: tuples of `width` values."""

    uid: str
    name: str
    width: int

    @classmethod
    def of(cls, uid: str, name: str, schema: Schema) -> Shape:
        return cls(uid, name, len(as_schema(schema, f"the state {name!r} of {uid!r}")))

    def checked(self, value: Any) -> Value:
        if not isinstance(value, tuple) or len(value) != self.width:
            raise ConfigError(
                "state-value-shape",
                f"the state {self.name!r} of {self.uid!r} gets {value!r}: its schema asks for a tuple of {self.width}"
                " values",
            )
        return value if type(value) is tuple else tuple(value)

    def checked_key(self, key: Any) -> Key:
        if float in map(type, key):
            raise ConfigError(
                "map-key-float",
                f"the state {self.name!r} of {self.uid!r} gets the key {key!r}: floats are no keys, since some are"
                " equal and differ",
            )
        return self.checked(key)
