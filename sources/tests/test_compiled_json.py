"""The compiled JSON parser beside the exact one: the same rows bit by bit, whatever of them each has parsed."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness.errors import raises
from hypothesis import given
from hypothesis import strategies as st
from test_kafka_parsers_are_exact import EDGES, JSON_VALUES, PLAIN

from onefold.core.errors import ConfigError
from onefold.sources.formats import compiled_json
from onefold.sources.formats.compiled_json import CompiledJson, described
from onefold.sources.formats.json import JsonParser
from onefold.sources.formats.values import Lines, Unparsable, Values, separate
from onefold.sources.native import library
from onefold.sources.native.building import DEFINED, compiler

pytestmark = pytest.mark.skipif(
    compiler() is None and isinstance(compiled_json.find(), str), reason="no C compiler, so nothing was built"
)
UTC = pa.timestamp("us", "UTC")
ORDERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        *[pa.field("name", pa.string()), pa.field("note", pa.string()), pa.field("price", pa.decimal128(12, 2))],
        *[pa.field("share", pa.float64()), pa.field("paid", pa.bool_()), pa.field("day", pa.date32())],
        *[pa.field("at", UTC), pa.field("local", pa.timestamp("us")), pa.field("count", pa.int32())],
    ]
)


class Recording:
    """The exact parser, and how many values were left to it."""

    def __init__(self, schema: pa.Schema) -> None:
        self.left = 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(library.VARIABLE, "off")
            self.exact = JsonParser(schema)

    def __call__(self, values: Values) -> pa.RecordBatch:
        self.left += len(values)
        return self.exact.parse(values)


def both(values: Values, schema: pa.Schema) -> tuple[pa.RecordBatch, pa.RecordBatch, int]:
    """The rows by the compiled parser, those by the exact one, and how many the former left to the latter."""
    exact, compiled = Recording(schema), CompiledJson.of(schema)
    assert compiled is not None
    found = compiled.parse(values, exact)
    found.validate(full=True)
    left = exact.left
    return found, exact.exact.parse(values), left


def lines(values: list[bytes]) -> Lines:
    joined = b"".join(values)
    are_objects = all(value[:1] == b"{" and value[-1:] == b"}" for value in values)
    array = pa.array([value + b"\n" for value in values], pa.binary())
    return Lines(array, are_objects=are_objects, is_ascii=joined.isascii())


def orders(count: int, seed: int) -> Iterator[bytes]:
    """As they come: nulls, missing and unknown fields, escapes, any order."""
    chance = random.Random(seed)
    for number in range(count):
        record: dict[str, Any] = {
            "id": chance.choice([number, -number, 2**63 - 1 - number, 1_795_000_000_000_000_000 + number]),
            "name": chance.choice(
                ["Anna", "José", 'the "other" one', "line\nnext", "😀", "\\", "\u0000", "a" * 70, ""]
            ),
            "note": chance.choice([None, None, "a note"]),
            "price": chance.choice([f"{number % 997}.{number % 100:02d}", number % 1000, number / 4, "-0.5", None]),
            "share": chance.choice([chance.random(), number, -0.0, 0, None, 1e-7, 5e-324, 1.7976931348623157e308]),
            "paid": chance.choice([True, False, None]),
            "day": chance.choice(["2026-11-20", "1600-02-29", "0001-01-01", "9999-12-31", None]),
            "at": chance.choice(["2026-11-20T08:30:00Z", "2026-11-20 08:30:00.123456+02:00", "1969-12-31T23:59:59.9"]),
            "local": chance.choice(["2026-11-20T08:30:00", "0001-01-01 00:00:00.000001", None]),
            "count": chance.choice([0, -(2**31), 2**31 - 1, None]),
            "more": chance.choice([None, {"a": [1, 2.5, {"b": None}]}, [], "NaN", 1e-9, True]),
        }
        names = [name for name in record if name == "id" or chance.random() < 0.95]
        if chance.random() < 0.3:
            chance.shuffle(names)
        blanks = chance.choice([(",", ":"), (", ", ": "), (" , ", "\t:\t")])
        text = json.dumps({name: record[name] for name in names}, ensure_ascii=chance.random() < 0.5, separators=blanks)
        yield text.encode()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("form", [list, lines])
def test_records_as_they_come_are_parsed_alike_and_nearly_all_by_the_compiled_one(seed: int, form: Any) -> None:
    found, expected, left = both(form(list(orders(2000, seed))), ORDERS)
    assert found.equals(expected)
    assert left < 20


def test_a_slice_of_lines_is_parsed_as_itself() -> None:
    values = list(orders(50, 5))
    found, expected, _ = both(lines(values)[17:31], ORDERS)
    assert found.equals(expected)
    assert expected.equals(Recording(ORDERS).exact.parse(values[17:31]))


@given(st.lists(st.sampled_from(PLAIN), min_size=2, max_size=2), JSON_VALUES)
def test_what_it_takes_is_what_the_exact_parser_says(kinds: list[pa.DataType], value: bytes) -> None:
    schema = pa.schema(dict(zip("ab", kinds, strict=True)))
    exact, compiled = Recording(schema), CompiledJson.of(schema)
    assert compiled is not None
    try:
        found = compiled.parse([value], exact)
    except Unparsable:
        assert exact.left == 1
        return
    assert found.equals(exact.exact.parse([value]))


# Of each type what is surely taken, what is left and is right, and what is left and is wrong.
MIXED: list[tuple[pa.DataType, str, str, str]] = [
    (pa.int8(), "-128", "null", "128"),
    (pa.int64(), "-9223372036854775807", "-9223372036854775808", "1.0"),
    (pa.float32(), "0.1", "16777217", "1e39"),
    (pa.float64(), "0.10000000000000000000000000000000000000001", "null", "1e309"),
    (pa.decimal128(12, 2), '"12.5"', "1e2", "1.505"),
    (pa.decimal128(38, 18), "1.000000000000000001", '"12345678901234567890.5"', '"1,5"'),
    (pa.bool_(), "true", "null", "1"),
    (pa.string(), '"caf\\u00e9"', "null", "17"),
    (pa.date32(), '"2024-02-29"', "null", '"2023-02-29"'),
    (UTC, '"2026-11-20T08:30:00-00:30"', '"2026-11-20T08:30+02"', '"0001-01-01T00:00:00+01:00"'),
    (pa.timestamp("us"), '"9999-12-31 23:59:59.999999"', '"2026-11-20 08"', '"2026-11-20T08:30:00Z"'),
]


@pytest.mark.parametrize(("kind", "taken", "left", "wrong"), MIXED, ids=lambda each: str(each))
def test_rows_that_are_left_come_back_in_their_places(kind: pa.DataType, taken: str, left: str, wrong: str) -> None:
    schema = pa.schema({"a": kind, "n": pa.int64()})
    texts = [left if number % 3 == 1 else taken for number in range(20)]
    values = [f'{{"a":{text},"n":{number}}}'.encode() for number, text in enumerate(texts)]
    found, expected, count = both(values, schema)
    assert found.equals(expected)
    assert found.column("n").to_pylist() == list(range(20))
    assert count == (0 if left == "null" else 7)
    values[13] = f'{{"n":1,"a":{wrong}}}'.encode()
    separated = separate(values, JsonParser(schema), 1)
    assert [bad.index for bad in separated.bad] == [13]
    assert separated.bad == separate(values, Recording(schema).exact, 1).bad
    assert separated.batch(schema).column("n").to_pylist() == [*range(13), *range(14, 20)]


NEVER_TAKEN = [
    *("{}x", "{}{}", '{"a":1,}', '{"a":01}', "[{}]", '{"a":1', '{"a":1}}', "", " ", "null", '{"a":+1}', '{"a":.5}'),
    *('{"a":1,"a":1}', '{"x":1e400}', '{"x":NaN}', '{"x":"\\ud800"}', '{"x":"\x01"}', "{'a':1}", '{"a":1}//', "{a:1}"),
    *('{"a":"1"}', '{"a":[1]}', '{"a":{"a":1}}', '{"a":true}', '{"a":-}', '{"a":0x1}', '{"a":1e2}', '{"a":1.0}'),
    *('{"x":0e309}', '{"x":[{"y":-0.0E+999}]}', '{"a":1,"x":0e99999999999}', '{"x":1e-400}'),
    '{"x":' + "[" * 300 + "]" * 300 + "}",
    '{"x":' + '{"x":' * 300 + "1" + "}" * 300 + ',"y":"so, NaN, it is"}',
    '{"x":"' + "x" * (1 << 20) + '"}',
]


@pytest.mark.parametrize("value", NEVER_TAKEN, ids=lambda value: value[:20])
def test_what_it_is_not_sure_of_is_left_untouched(value: str) -> None:
    seen = list[Values]()
    compiled = CompiledJson.of(pa.schema({"a": pa.int64()}))
    assert compiled is not None

    def parse_left(values: Values) -> pa.RecordBatch:
        seen.append(list(values))
        raise Unparsable(0, "asked")

    for form in (list, lines):
        with pytest.raises(Unparsable) as caught:
            compiled.parse(form([b'{"a":1}', value.encode()]), parse_left)
        assert caught.value.index == 1
    assert seen == [[value.encode()]] * 2
    with pytest.raises(Unparsable):
        compiled.parse([None], parse_left)
    with pytest.raises(Unparsable):
        compiled.parse([b'{"x":"\xff"}'], parse_left)


def test_values_that_are_all_left_are_handed_on_as_they_are() -> None:
    compiled = CompiledJson.of(pa.schema({"a": pa.int64()}))
    assert compiled is not None
    expected = pa.record_batch({"a": pa.array([1, 2])})
    for values in ([b'{"a":1e0}', b'{"a":2e0}'], lines([b'{"a":1e0}', b'{"a":2e0}'])):

        def parse_left(left: Values, given: Values = values) -> pa.RecordBatch:
            assert left is given
            return expected

        assert compiled.parse(values, parse_left) is expected


def test_no_values_are_no_rows() -> None:
    for parser in (JsonParser(ORDERS), Recording(ORDERS).exact):
        for form in (list, lines):
            found = parser.parse(form([]))
            assert (found.num_rows, found.schema) == (0, ORDERS)


def test_a_value_of_many_objects_is_bad_by_itself() -> None:
    """The reader names the row of an object, and there are more of them than values."""
    schema = pa.schema({"a": pa.int64()})
    values = [b'{"a":1}', b'{"a":2}', b"{} {} {} 5 {}", b'{"a":1.5}', b'{"a":3}']
    for form in (list, lines):
        found = separate(form(values), JsonParser(schema), 2)
        assert found.bad == separate(form(values), Recording(schema).exact, 2).bad
        assert [bad.index for bad in found.bad] == [2, 3]
        assert found.batch(schema).column("a").to_pylist() == [1, 2, 3]


def test_a_field_is_passed_over_as_deep_and_as_long_as_the_exact_parser_surely_does() -> None:
    schema = pa.schema({"a": pa.int64()})
    deep, wide = "[" * 299 + "]" * 299, "[" + '{"y":[[],{}]},' * 20_000 + "0]"
    texts = [f'{{"x":{inside},"a":1,"z":" NaN "}}' for inside in (deep, wide, f"[{wide},{deep[1:-1]}]")]
    found, expected, left = both([text.encode() for text in texts], schema)
    assert found.equals(expected)
    assert left == 0


def test_of_a_field_that_must_be_there_a_null_is_left() -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())])
    for value in (b"{}", b'{"a":null}'):
        (bad,) = separate([b'{"a":1}', value], JsonParser(schema), 1).bad
        assert bad.index == 1
        assert "NOT NULL" in bad.reason


@pytest.mark.parametrize("count", [1, 7, 64, 1500])
def test_as_many_columns_as_there_are_in_any_order(count: int) -> None:
    names = [f"column_{number}" for number in range(count)]
    schema = pa.schema(dict.fromkeys(names, pa.int32()))
    turned = [dict(zip(names[at:] + names[:at], range(count), strict=True)) for at in (0, count // 2, 0, count - 1)]
    found, expected, left = both([json.dumps(each).encode() for each in turned], schema)
    assert found.equals(expected)
    assert left == 0


@pytest.mark.parametrize("seed", range(3))
def test_fields_are_found_by_names_of_any_length_in_any_order_among_unknown_ones(seed: int) -> None:
    chance = random.Random(seed)
    names = ["".join(chance.choice("ab\0é") for _ in range(length % 40)) for length in range(400)]
    columns = sorted(set(names[::2]), key=names.index)
    schema = pa.schema([pa.field(name, pa.string()) for name in columns])
    values = []
    for _ in range(200):
        fields = list(dict.fromkeys(chance.sample(names, chance.choice([0, 1, 20, 200, 400]))))
        values.append(json.dumps({name: name[::-1] for name in fields}).encode())
    found, expected, left = both(values, schema)
    assert found.equals(expected)
    assert left == 0


def test_many_columns_in_another_order_in_each_record_are_faster_than_by_the_exact_parser() -> None:
    names, chance = [f"column_{number}" for number in range(1500)], random.Random(1)
    schema = pa.schema(dict.fromkeys(names, pa.int32()))
    values = [json.dumps(dict.fromkeys(chance.sample(names, 1400), 1)).encode() for _ in range(50)]
    exact, compiled = Recording(schema), JsonParser(schema)
    times_s = []
    for parser in (exact.exact, compiled):
        parser.parse(values)
        started_s = time.process_time()
        parser.parse(values)
        times_s.append(time.process_time() - started_s)
    assert times_s[1] < times_s[0], times_s


def test_memory_is_that_of_the_texts_however_many_columns_there_are() -> None:
    names = [f"column_{number}" for number in range(300)]
    schema = pa.schema(dict.fromkeys(names, pa.string()))
    values = [b'{"column_%d":"%s"}' % (number % 3, b"x" * 2000) for number in range(1000)]
    compiled, before = CompiledJson.of(schema), pa.default_memory_pool()
    assert compiled is not None
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    try:
        size = compiled.parse(values, Recording(schema)).nbytes  # no row outlives the pool
    finally:
        pa.set_memory_pool(before)
    assert pool.max_memory() < size + 2 * sum(map(len, values))


def test_types_that_it_does_not_know_are_the_exact_parsers() -> None:
    for kind in (pa.binary(), pa.list_(pa.int64()), pa.struct({"a": pa.int64()}), pa.large_string()):
        assert CompiledJson.of(pa.schema({"a": kind})) is None
        assert separate([b"{}"], JsonParser(pa.schema({"a": kind})), 0).rows[0].column(0).to_pylist() == [None]


@pytest.mark.parametrize("compiled", ["required", "off"])
def test_a_list_that_no_array_holds_is_refused_and_says_what_to_do(
    compiled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(library.VARIABLE, compiled)
    parser = JsonParser(pa.schema({"a": pa.int64()}))
    two = pa.chunked_array([[b"{}"], [b"{}"]], pa.binary())  # what pyarrow makes of more than 2 GiB
    monkeypatch.setattr("onefold.sources.formats.values.pa.array", lambda *_: two)
    monkeypatch.setattr("onefold.sources.formats.json._BYTES_MAX", 5)
    with raises(ConfigError, "batch-too-large", "Parse fewer of them at once"):
        separate([b"{}", b"{}"], parser, 0)


def test_it_can_be_turned_off_and_required(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema({"a": pa.int64()})
    monkeypatch.setenv(library.VARIABLE, "off")
    assert CompiledJson.of(schema) is None
    assert described().endswith("turned off")
    monkeypatch.setenv(library.VARIABLE, "required")
    assert CompiledJson.of(schema) is not None
    assert "as far as it is sure" in described()
    monkeypatch.setattr(compiled_json, "find", lambda: "it was not built")
    with raises(ConfigError, "compiled-helper-missing", "it was not built"):
        JsonParser(schema)
    monkeypatch.setenv(library.VARIABLE, "auto")
    assert described().endswith("not used, it was not built")
    assert separate([b'{"a":1}'], JsonParser(schema), 0).rows[0].column(0).to_pylist() == [1]


def test_every_edge_of_a_number_is_the_same_in_an_unknown_field() -> None:
    schema = pa.schema({"a": pa.int64()})
    values = [f'{{"a":{number},"x":{text}}}'.encode() for number, text in enumerate(EDGES)]
    found = [separate(values, parser, len(values)) for parser in (JsonParser(schema), Recording(schema).exact)]
    assert [bad.index for bad in found[0].bad] == [bad.index for bad in found[1].bad]
    assert found[0].batch(schema).equals(found[1].batch(schema))


@pytest.mark.slow  # the sanitizers compile yyjson, too
@pytest.mark.skipif(compiler() is None, reason="no C compiler here")
def test_made_up_texts_overflow_nothing(tmp_path: Path) -> None:
    """As the sanitizers of addresses and undefined behaviour see it."""
    native, made, command = Path(library.__file__).parent, tmp_path / "fuzz", compiler()
    assert command is not None
    flags = ["-std=c11", "-g", "-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{native}"]
    sources = [str(Path(__file__).parent / "json_fuzz.c"), str(native / "yyjson.c")]
    compiling = [*command, *flags, *DEFINED, *sources, "-o", str(made)]
    compiled = subprocess.run(compiling, capture_output=True, text=True, timeout=120, check=False)
    if compiled.returncode != 0 and ("sanitize" in compiled.stderr or "asan" in compiled.stderr):
        pytest.skip(f"this compiler has no sanitizers: {compiled.stderr}")
    assert compiled.returncode == 0, compiled.stderr
    done = subprocess.run([str(made), "3000", "7"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
