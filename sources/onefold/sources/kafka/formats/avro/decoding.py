"""Decodes bare Avro records as Arrow, exactly or not at all, with pyruhvro or else with fastavro.

pyruhvro decodes many records at once into Arrow, about fifty times as fast as fastavro makes Python objects of them.
It has no bytes, fixed or general unions and no reader's schema, and checks neither that a record is the whole of its
value nor that its texts are UTF-8. So it decodes a record of two fields: ours, and a random number of this process,
which is appended to every value. If that number comes out again, the record ended where its value ends. Ints are
decoded as longs, because pyruhvro would cut those beyond 32 bits. Bytes are decoded as texts, which look the same on
the wire, and are taken as bytes before any text is checked. A version of pyruhvro that checks texts itself is
detected, and decodes no bytes. fastavro decodes all that pyruhvro cannot.

A value of a recursive type chooses its own depth. fastavro's compiled reader overflows its stack at some thousand
levels, which ends the process. So a value that may be deep is read by fastavro's Python reader, which raises
RecursionError at a hundred or two.

fastavro does not check that the bytes which it skips are there. So each value has one more byte at its end: a reader
that takes it has read beyond the value, which was cut off.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from typing import Any

import fastavro
import fastavro._read_py as fastavro_in_python
import pyarrow as pa
import pyarrow.compute as pc
import pyruhvro
from fastavro.io.binary_decoder import BinaryDecoder

from onefold.sources.formats.value_range import check_column
from onefold.sources.formats.values import Unparsable
from onefold.sources.kafka.formats.avro.avro_types import (
    AvroNode,
    AvroSchema,
    Form,
    array_of,
    bare,
    mismatch,
    without_logical_types,
)
from onefold.sources.kafka.formats.avro.limits import (
    CELLS_MAX,
    BadSchema,
    cells_a_byte,
    examined,
    types_in,
    types_inside,
)

Json = Any
Decoder = Callable[[Sequence[bytes]], pa.RecordBatch]  # raises `Unparsable`

_WIDENED = {("int", "long"), ("int", "float"), ("int", "double"), ("long", "float"), ("long", "double")} | {
    ("float", "double")
}
_PRIMITIVES = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
_SHALLOW_BYTES = 256  # a level is one byte or more
_VARINT_BYTES_MAX = 10
_END = int.from_bytes(os.urandom(8), "big") >> 2


def _takes_bytes() -> bool:
    """Whether a text of pyruhvro's may be any bytes."""
    text = json.dumps({"type": "record", "name": "r", "fields": [{"name": "a", "type": "string"}]})
    try:
        found = pyruhvro.deserialize_array([b"\x04\xff\x00"], text).column("a").cast(pa.binary())
    except ValueError:
        return False
    return bool(found[0].as_py() == b"\xff\x00")


_VECTORISED = {"null", "boolean", "int", "long", "float", "double", "string", "enum"} | (
    {"bytes"} if _takes_bytes() else set()
)


def decoder_of(writer: Json, reader: AvroSchema, schema: pa.Schema) -> Decoder:
    """What reads records written as `writer` as the columns of `schema`; raises `Unparsable` if that cannot be."""
    try:
        written = examined(writer)
    except BadSchema as error:
        raise Unparsable(None, f"its Avro schema {error}") from None
    if not isinstance(written, dict) or written.get("type") != "record":
        raise Unparsable(None, "its Avro schema is no record's")
    if (why := mismatch(written, reader.expanded)) is not None:
        raise Unparsable(None, why)
    if _is_endless(written):
        raise Unparsable(None, "its Avro schema has a record that is within itself always: no value of it ends")
    cells = types_in(written)
    a_byte = max(cells_a_byte(written, reader.expanded), cells if _is_recursive(written) else 0)
    if a_byte == math.inf:
        raise Unparsable(None, "its Avro schema has a list of items that take no bytes: a value can have any number")
    writer = without_logical_types(writer)
    nodes = dict(zip(reader.node.names, reader.node.inside, strict=True))
    columns = [(field, nodes[field.name]) for field in schema]
    decode = _vectorised(writer, reader, columns) or _general(writer, reader, columns)
    return partial(_within_bounds, decode, cells, a_byte)


def _within_bounds(decode: Decoder, cells: int, a_byte: float, values: Sequence[bytes]) -> pa.RecordBatch:
    """All values, in as many parts as keep each within `CELLS_MAX`."""
    costs = [cells + a_byte * len(value) for value in values] if a_byte else [cells] * len(values)
    if sum(costs) <= CELLS_MAX:
        return decode(values)
    parts, start, total = list[pa.RecordBatch](), 0, 0.0
    for index, cost in enumerate(costs):
        if cost > CELLS_MAX:
            raise Unparsable(
                index, f"{len(values[index])} bytes can be {cost:.0f} cells by its Avro schema, more than {CELLS_MAX}"
            )
        if total + cost > CELLS_MAX:
            parts.append(_part(decode, values, start, index))
            start, total = index, 0.0
        total += cost
    return pa.concat_batches([*parts, _part(decode, values, start, len(values))])


def _part(decode: Decoder, values: Sequence[bytes], start: int, end: int) -> pa.RecordBatch:
    try:
        return decode(values[start:end])
    except Unparsable as error:
        index = None if error.index is None else start + error.index
        raise Unparsable(index, error.reason, error.is_permanent) from None


_Columns = list[tuple[pa.Field, AvroNode]]


def _batch(arrays: list[pa.Array], columns: _Columns) -> pa.RecordBatch:
    fields = [field for field, _ in columns]
    cast = [array.cast(field.type) for array, field in zip(arrays, fields, strict=True)]
    for array, field in zip(cast, fields, strict=True):
        check_column(array, field)
    return pa.RecordBatch.from_arrays(cast, schema=pa.schema(fields))


def _general(writer: Json, reader: AvroSchema, columns: _Columns) -> Decoder:
    parsed = fastavro.parse_schema(writer)
    read_as = None if writer == reader.stripped else reader.decoded_as
    shallow_bytes = _SHALLOW_BYTES if _is_recursive(fastavro.schema.expand_schema(writer)) else None

    def record(index: int, value: bytes) -> dict[str, Any]:
        data = BytesIO(value + b"\0")
        is_shallow = shallow_bytes is None or len(value) <= shallow_bytes
        read = fastavro.schemaless_reader if is_shallow else _read_deep
        try:
            found = read(data, parsed, read_as)
        except RecursionError:
            raise Unparsable(index, "the record is nested too deep: records within themselves, or lists") from None
        except Exception as error:  # bytes that are no record may make it raise anything
            raise Unparsable(index, f"not a record of its Avro schema: {error!r}") from None
        if (left := len(value) - data.tell()) != 0:
            why = f"{left} bytes are left over behind it" if left > 0 else "it ends too early"
            raise Unparsable(index, f"not a record of its Avro schema: {why}")
        assert isinstance(found, dict), found
        return found

    def decode(values: Sequence[bytes]) -> pa.RecordBatch:
        records = [record(index, value) for index, value in enumerate(values)]
        try:
            return _batch([array_of(node, [r[field.name] for r in records]) for field, node in columns], columns)
        except (pa.ArrowException, OverflowError, ValueError) as error:
            raise Unparsable(None, f"not a record of its Avro schema: {error}") from None

    return decode


class _Decoder(BinaryDecoder):
    """Of numbers that end: one of a million bytes would take minutes."""

    def read_long(self) -> int:
        head: bytes = self.fo.read(_VARINT_BYTES_MAX)
        size = next((at for at, byte in enumerate(head, 1) if byte < 0x80), 0)
        if not size:
            raise EOFError("a number does not end")
        self.fo.seek(size - len(head), os.SEEK_CUR)
        number = sum((byte & 0x7F) << 7 * at for at, byte in enumerate(head[:size]))
        return (number >> 1) ^ -(number & 1)

    read_int = read_long


def _read_deep(data: BytesIO, writer: Json, read_as: Json) -> Any:
    """What `fastavro_in_python.schemaless_reader` does, with a decoder of ours."""
    named: dict[str, dict[str, Json]] = {"writer": {}, "reader": {}}
    writer = fastavro.parse_schema(writer, named["writer"])
    read_as = read_as and fastavro.parse_schema(read_as, named["reader"])
    decoder = _Decoder(data)  # type: ignore[no-untyped-call]
    return fastavro_in_python.read_data(decoder, writer, named, read_as, {})  # type: ignore[no-untyped-call]


def _vectorised(writer: Json, reader: AvroSchema, columns: _Columns) -> Decoder | None:
    """None where pyruhvro, or the little that is done here for the reader's schema, would not be exact."""
    written: Json = fastavro.schema.expand_schema(writer)
    wanted: Json = fastavro.schema.expand_schema(reader.stripped)
    if _short(written["name"]) != _short(wanted["name"]) or '"aliases"' in json.dumps(wanted):
        return None
    if not all(_is_vectorised(field["type"]) for field in written["fields"]):
        return None
    if any(_has_decimal(part) for _, node in columns for part in node.inside):
        return None
    there = {field["name"]: field["type"] for field in written["fields"]}
    defaults = {}
    for field in wanted["fields"]:
        if field["name"] in there:
            if not _is_readable(there[field["name"]], field["type"]):
                return None
        elif "default" in field:
            defaults[field["name"]] = field["default"]
        else:
            return None
    enclosed = {
        "type": "record",
        "name": "onefold_enclosed",
        "fields": [{"name": "body", "type": _with_longs(writer)}, {"name": "end", "type": "long"}],
    }
    text, end = json.dumps(enclosed), _varint(_END)
    in_dicts = _general(writer, reader, columns)

    def decode(values: Sequence[bytes]) -> pa.RecordBatch:
        try:
            found = pyruhvro.deserialize_array([value + end for value in values], text)
            whole = pc.equal(found.column("end"), _END)
            if not pc.all(whole).as_py():
                raise Unparsable(pc.index(whole, False).as_py(), "not a record of its Avro schema: bytes are left over")
            body = found.column("body")
            if any(_has_key_twice(body.field(field.name)) for field, _ in columns if field.name in there):
                return in_dicts(values)
            arrays = [
                array_of(node, [defaults[field.name]] * len(values))
                if field.name in defaults
                else _as_node(body.field(field.name), node)
                for field, node in columns
            ]
            return _batch(arrays, columns)
        except (pa.ArrowException, ValueError) as error:
            raise Unparsable(None, f"not a record of its Avro schema: {error}") from None
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of Rust's, and no Exception of Python's
                raise
            raise Unparsable(None, f"not a record of its Avro schema: {error}") from None

    return decode


def _has_key_twice(array: pa.Array) -> bool:
    """Whether a map in it has. The last one counts then, as everywhere where maps are Avro's."""
    kind = array.type
    if pa.types.is_map(kind):
        keys = pa.ListArray.from_arrays(array.offsets, array.keys.cast(pa.binary()))  # not yet seen to be UTF-8
        pairs = pa.table({"map": pc.list_parent_indices(keys), "key": keys.flatten()})
        return bool(pairs.group_by(["map", "key"]).aggregate([]).num_rows < len(pairs)) or _has_key_twice(array.items)
    if pa.types.is_list(kind):
        return _has_key_twice(array.flatten())
    if pa.types.is_struct(kind):
        return any(map(_has_key_twice, array.flatten()))
    return False


def _is_recursive(expanded: Json) -> bool:
    """Whether a type is within itself: then its name is left where the type would have to be written out again."""
    if isinstance(expanded, str):
        return expanded not in _PRIMITIVES
    return any(map(_is_recursive, types_inside(expanded)))


def _is_endless(expanded: Json, around: frozenset[str] = frozenset()) -> bool:
    """Whether a record is within itself with no union, list or map between, which alone can end it, and which take a
    byte a level. `around` are the records that are entered without one."""
    if isinstance(expanded, list):
        return any(map(_is_endless, expanded))
    if isinstance(expanded, str):
        return expanded in around
    if "fields" in expanded:
        return any(_is_endless(field["type"], around | {expanded["name"]}) for field in expanded["fields"])
    if not isinstance(expanded["type"], str):
        return _is_endless(expanded["type"], around)
    return any(_is_endless(expanded[name]) for name in ("items", "values") if name in expanded)


def _is_vectorised(schema: Json) -> bool:
    if isinstance(schema, list):
        return len(schema) == 2 and schema.count("null") == 1 and all(map(_is_vectorised, schema))
    kind = schema if isinstance(schema, str) else schema["type"]
    if isinstance(kind, (dict, list)):
        return _is_vectorised(kind)
    match kind:
        case "array":
            return _is_vectorised(schema["items"])
        case "map":
            return _is_vectorised(schema["values"])
        case "record":
            return bool(schema["fields"]) and all(_is_vectorised(field["type"]) for field in schema["fields"])
    return kind in _VECTORISED


def _has_decimal(node: AvroNode) -> bool:
    return node.form is Form.DECIMAL or any(map(_has_decimal, node.inside))


def _is_readable(written: Json, wanted: Json) -> bool:
    """Whether a written field is the wanted one as it is, or made nullable, or a wider number."""
    one, other = bare(written), bare(wanted)
    if isinstance(written, list) and not isinstance(wanted, list):
        return False
    return bool(one == other or (isinstance(one, str) and isinstance(other, str) and (one, other) in _WIDENED))


def _with_longs(schema: Json) -> Json:
    if isinstance(schema, list):
        return [_with_longs(branch) for branch in schema]
    if isinstance(schema, dict):
        kept = {name: _with_longs(schema[name]) for name in ("type", "items", "values") if name in schema}
        if "fields" in schema:
            kept["fields"] = [{"name": f["name"], "type": _with_longs(f["type"])} for f in schema["fields"]]
        return {**{name: schema[name] for name in ("name", "namespace", "symbols") if name in schema}, **kept}
    return {"int": "long", "bytes": "string"}.get(schema, schema)


def _as_node(array: pa.Array, node: AvroNode) -> pa.Array:
    """What was decoded with longs and texts, as the node's own type. Each step refuses what does not fit."""
    array = _cast(array, _type(node, _storage))
    array.validate(full=True)  # that its texts are UTF-8
    if node.form is Form.DECIMAL:
        return array_of(node, array.to_pylist())
    return _cast(_cast(array, _type(node, lambda n: n.counted or n.arrow)), node.arrow)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind)


def _storage(node: AvroNode) -> pa.DataType:
    if node.form in (Form.BYTES, Form.DECIMAL):
        return pa.binary()
    if node.counted is None:
        return node.arrow
    return pa.int32() if pa.types.is_date(node.counted) else pa.int64()


def _type(node: AvroNode, leaf: Callable[[AvroNode], pa.DataType]) -> pa.DataType:
    match node.form:
        case Form.RECORD:
            parts = zip(node.names, node.inside, strict=True)
            return pa.struct([pa.field(name, _type(part, leaf)) for name, part in parts])
        case Form.LIST:
            return pa.list_(_type(node.inside[0], leaf))
        case Form.MAP:
            return pa.map_(pa.string(), _type(node.inside[0], leaf))
    return leaf(node)


def _varint(number: int) -> bytes:
    """A long as Avro writes it."""
    number, out = number << 1, bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _short(name: str) -> str:
    return name.rpartition(".")[2]
