"""Bounds what Avro schemas and values may cost: producers choose both.

A schema names a type once and uses it many times, so two kilobytes of it can stand for a million columns. A value says
how many items an array has, and items may take no bytes: ten bytes can stand for any number of nulls. So a schema is
read within bounds; and what a value may become is computed beforehand, from its length and from the cells that a byte
of its schema can make at most.
"""

from __future__ import annotations

import json
import math
from typing import Any

import fastavro

Json = Any

TEXT_BYTES_MAX = 1024 * 1024
TYPES_MAX = 10_000  # each counted as often as it is used
LEVELS_MAX = 50  # Arrow itself takes 64, some of which are ours
CELLS_MAX = 1 << 24

_JSON_LEVELS_MAX = 3 * LEVELS_MAX  # a record in a field of a record is three of them
_BYTES = {"null": 0, "float": 4, "double": 8}  # the least that a type takes; others: 1


class BadSchema(ValueError):
    """A schema that is none, or beyond the bounds; its text is a predicate: "has more than ..."."""


def loaded(text: str) -> Json:
    """The JSON of a schema, of bounded depth, and without what only fastavro writes there, and would believe."""
    if len(text) > TEXT_BYTES_MAX:
        raise BadSchema(f"is a text of {len(text)} characters, more than {TEXT_BYTES_MAX}")
    try:
        return _plain(json.loads(text), _JSON_LEVELS_MAX)
    except RecursionError:
        raise BadSchema(f"is more than {LEVELS_MAX} levels deep") from None
    except ValueError as error:
        raise BadSchema(f"is no Avro schema: {error}") from None


def examined(schema: Json, named: dict[str, Json] | None = None) -> Json:
    """The schema with every type written out where it is used. Raises `BadSchema`.

    `named` are the types that it refers to, and its own are added. Equal parts of the result are one object: it takes
    no more memory than the schema, but a walk through it meets every use, of which there are `TYPES_MAX` at most.
    """
    try:
        expanded = fastavro.parse_schema(schema, named, expand=True, _write_hint=False)
    except MemoryError:
        raise
    except Exception as error:  # fastavro's own, and whatever a strange schema makes of it
        raise BadSchema(f"is no Avro schema: {error!r}") from None
    _count(expanded, 0, [TYPES_MAX])
    return expanded


def _plain(value: Json, levels: int) -> Json:
    if levels < 0:
        raise BadSchema(f"is more than {LEVELS_MAX} levels deep")
    if isinstance(value, list):
        return [_plain(item, levels - 1) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item, levels - 1) for name, item in value.items() if not name.startswith("__")}
    return value


def _count(kind: Json, level: int, left: list[int]) -> None:
    left[0] -= 1
    if left[0] < 0:
        raise BadSchema(f"has more than {TYPES_MAX} types, each counted as often as it is used")
    if level > LEVELS_MAX:
        raise BadSchema(f"is more than {LEVELS_MAX} levels deep")
    if isinstance(kind, dict):
        size = kind.get("size", 0)
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise BadSchema(f"is no Avro schema: a fixed of {size!r} bytes")
        names = [field["name"] for field in kind.get("fields", ())]
        if len(names) != len(set(names)):
            raise BadSchema("is no Avro schema: a record has a field twice")
    for inner in types_inside(kind):
        _count(inner, level + 1, left)


def types_inside(kind: Json) -> list[Json]:
    """The types that one is made of."""
    if isinstance(kind, list):
        return kind
    if not isinstance(kind, dict):
        return []
    inside = [kind[name] for name in ("items", "values") if name in kind]
    inside += [field["type"] for field in kind.get("fields", ())]
    return inside + [inner for inner in [kind["type"]] if not isinstance(inner, str)]


def types_in(kind: Json) -> int:
    return 1 + sum(map(types_in, types_inside(kind)))


def _width(kind: Json) -> int:
    """How many cells a value has at least in columns: a null record has one for each of its fields, too."""
    if isinstance(kind, list):
        return max(map(_width, kind), default=1)
    if isinstance(kind, dict) and "fields" in kind:
        return 1 + sum(_width(field["type"]) for field in kind["fields"])
    if isinstance(kind, dict) and not isinstance(kind["type"], str):
        return _width(kind["type"])
    return 1


def _bytes_min(kind: Json) -> int:
    if isinstance(kind, list):
        return 1 + min(map(_bytes_min, kind), default=0)
    if isinstance(kind, str):  # a record's name within itself: one that ends has a union, array or map on the way
        return _BYTES.get(kind, 1)
    if "fields" in kind:
        return sum(_bytes_min(field["type"]) for field in kind["fields"])
    if kind["type"] == "fixed":
        return int(kind["size"])
    return 1 if kind["type"] in ("array", "map", "enum") else _bytes_min(kind["type"])


def cells_a_byte(written: Json, wanted: Json = None) -> float:
    """How many cells a byte of a value can make, beyond those that every value has: items are what repeats.

    Both are written out. `wanted` is what `written` is read as, whose items may have more fields, with defaults.
    """
    if isinstance(written, str):
        return 0.0
    asked = [branch for branch in wanted if branch != "null"] if isinstance(wanted, list) else [wanted]
    if isinstance(written, list) or len(asked) != 1:
        branches = written if isinstance(written, list) else [written]
        return max((cells_a_byte(one, other) for one in branches for other in asked or [None]), default=0.0)
    there = asked[0] if isinstance(asked[0], dict) else {}
    for part, key_bytes in (("items", 0), ("values", 1)):
        if part in written:
            items, asked_items = written[part], there.get(part)
            least = _bytes_min(items) + key_bytes
            most = max(_width(items), _width(asked_items) if asked_items is not None else 1)
            here = most / least if least else math.inf
            return max(here, cells_a_byte(items, asked_items))
    if "fields" in written:
        by_name = {name: f["type"] for f in there.get("fields", ()) for name in (f["name"], *f.get("aliases", ()))}
        return max((cells_a_byte(f["type"], by_name.get(f["name"])) for f in written["fields"]), default=0.0)
    if not isinstance(written["type"], str):
        return cells_a_byte(written["type"], wanted)
    return 0.0
