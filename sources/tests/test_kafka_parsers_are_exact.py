"""Hostile values of each format, held against exact arithmetic: a parser gives what they say, or refuses them.

What has failed once stays as an example. `HYPOTHESIS_PROFILE=explore` looks further, by other seeds. No server.
"""

from __future__ import annotations

import json as stdlib_json
import math
from collections.abc import Callable, Sequence
from typing import Any

import exact
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onefold.sources.formats.csv import CsvParser
from onefold.sources.formats.json import JsonParser
from onefold.sources.formats.values import Parser, separate
from onefold.sources.native.library import VARIABLE

EXAMPLES = 4 * settings.default.max_examples
DECIMALS = [(38, 18), (38, 10), (38, 0), (38, 38), (30, 10), (20, 5), (12, 2), (1, 0)]
PLAIN = [
    *(pa.decimal128(*each) for each in DECIMALS),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string()),
    *(pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")),
]
EDGES = [
    *(
        "0",
        "-0",
        "1",
        "0.5",
        "00",
        "01",
        "1.",
        ".5",
        "+1",
        "-",
        "1e5",
        "1E+2",
        "1e-2",
        "1.50",
        "1e400",
        "1e39",
        "1e-400",
    ),
    *("127", "128", "-129", "32768", "2147483648", "-2147483648", "9007199254740993", "9223372036854775808"),
    *("1e-38", "1e-39", "1e-41", "1e-76", "1e-77", "1e38", "0e38", "0e39", "0e-38", "1000e-3", "1e-00000000000000002"),
    *("1e-99999999", "1e-999999999", "0e-999999999", "1e-2147483648", "1e99999999999", "1" * 39, "9" * 38, "1" * 90),
    *("0." + "0" * 37 + "1", "0." + "0" * 80 + "1", "1." + "0" * 37, "1." + "0" * 38, "0" * 50 + "7"),
    *("0x1F", "0xFFFFFFFF", "0X10", "1_0", "1,5", "１", "nan", "NaN", "inf", "-Infinity", "Inf", "1.0000000596046448"),
    *("16777217", "3.4028235677973366e38", "1.1754942e-38", "4.9e-324", "2.2250738585072011e-308"),
]
NUMBERS = st.one_of(
    st.sampled_from(EDGES),
    st.from_regex(
        r"-?(0|[1-9][0-9]{0,45})(\.[0-9]{1,45})?([eE][+-]?[0-9]{1,3})?", fullmatch=True, alphabet="0123456789.-+eE"
    ),
    st.builds(lambda whole, zeros: f"{whole}{'0' * zeros}", st.integers(-(10**38), 10**38), st.integers(0, 30)),
    st.builds(
        lambda digits, at, sign: f"{sign}{digits[:at] or '0'}.{digits[at:] or '0'}",
        st.text("0123456789", min_size=1, max_size=40).map(lambda text: text.lstrip("0") or "0"),
        st.integers(0, 40),
        st.sampled_from(["", "-"]),
    ),
)
TIMES = st.one_of(
    st.datetimes().map(lambda at: at.isoformat()),
    st.builds(
        lambda at, zone: at.isoformat() + zone,
        st.datetimes(),
        st.sampled_from(
            ["", "Z", "z", "+02:00", "-0330", "+23:59", "+24:00", "-00:60", "+2", "+02", " +02:00", "+02:00:30"]
        ),
    ),
    st.dates().map(lambda at: at.isoformat()),
    st.sampled_from(
        ["2026-02-29", "2026-1-1", "20260101", "2026-01-01T24:00:00", "2026-01-01T23:59:60", "10000-01-01"]
    ),
    st.sampled_from(["2026-01-01 00", "2026-01-01T00:00", "2026-01-01T00:00:00.1", "2026-01-01T00:00:00.1234567"]),
    st.sampled_from(["2026-01-01T", "2026-01-01T00:00:00.", "-001-01-01", "2026-01-01Z", "2026-01-01T00:00:00+"]),
)
TEXTS = st.one_of(
    st.text(max_size=8), st.sampled_from(["NaN", "see, NaN, or -Inf ]", "e-99", '"', "\\", "{}", "AAH/", "AB=="]), TIMES
)


def outcomes(oracle: Callable[[Any], dict[str, Any]], values: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        try:
            found.append(_marked(oracle(value)))
        except exact.Bad:
            found.append("bad")
    return found


def by_pyarrow(schema: pa.Schema) -> JsonParser:
    """Without the compiled parser, which where it was built takes what it is sure of."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "off")
        return JsonParser(schema)


def parsed(parser: Parser, values: Sequence[Any]) -> list[Any]:
    found = separate(values, parser, len(values))
    rows = iter([_marked(row) for batch in found.rows for row in batch.to_pylist()])
    bad = {each.index for each in found.bad}
    result = ["bad" if index in bad else next(rows) for index in range(len(values))]
    assert next(rows, None) is None
    return result


def _marked(value: Any) -> Any:
    """Equal by its bits: one zero is not the other, and a NaN is itself."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else (value, math.copysign(1, value))
    if isinstance(value, dict):
        return {name: _marked(item) for name, item in value.items()}
    return [_marked(item) for item in value] if isinstance(value, list) else value


def _escaped(draw: Any, text: str) -> str:
    """A JSON text, some characters of it written as their numbers."""
    if draw(st.integers(0, 3)):
        return stdlib_json.dumps(text, ensure_ascii=draw(st.booleans()))
    return '"' + "".join(f"\\u{ord(c):04x}" if ord(c) < 0x10000 else c for c in text) + '"'


@st.composite
def json_texts(draw: Any, depth: int = 0) -> str:
    match draw(st.integers(0, 9 if depth < 3 else 6)):
        case 0 | 1 | 2:
            return str(draw(NUMBERS))
        case 3:
            return _escaped(draw, draw(NUMBERS))
        case 4 | 5:
            return _escaped(draw, draw(TEXTS))
        case 6:
            return str(
                draw(
                    st.sampled_from(
                        ["null", "true", "false", "NaN", "-Infinity", "Inf", '"\\ud800"', '"\\q"', "", "1}{"]
                    )
                )
            )
        case 7:
            return "[" + ", ".join(draw(st.lists(json_texts(depth + 1), max_size=3))) + "]"
    return str(draw(json_objects(depth + 1)))


@st.composite
def json_objects(draw: Any, depth: int = 0) -> str:
    pairs = draw(st.lists(st.tuples(st.sampled_from(["a", "b", "x"]), json_texts(depth)), max_size=3))
    blank = draw(st.sampled_from(["", " ", "\n", "\t"]))
    return "{" + f",{blank}".join(f"{_escaped(draw, key)}{blank}:{blank}{text}" for key, text in pairs) + "}"


def json_types() -> Any:
    def nested(inside: Any) -> Any:
        return st.one_of(
            inside.map(pa.list_), st.tuples(inside, inside).map(lambda two: pa.struct({"a": two[0], "b": two[1]}))
        )

    return st.recursive(st.sampled_from(PLAIN), nested, max_leaves=3)


JSON_VALUES = st.one_of(
    json_objects(),
    NUMBERS.map(lambda text: f'{{"a":{text}}}'),
    NUMBERS.map(lambda text: f'{{"a":"{text}"}}'),
    TIMES.map(lambda text: f'{{"a":"{text}"}}'),
).map(str.encode)


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(json_types(), json_types(), st.lists(JSON_VALUES, min_size=1, max_size=4))
def test_a_json_value_is_what_it_says_or_refused(a: pa.DataType, b: pa.DataType, values: list[bytes]) -> None:
    schema = pa.schema({"a": a, "b": b})
    expected = outcomes(lambda value: exact.json_row(value, schema), values)
    assert parsed(JsonParser(schema), values) == parsed(by_pyarrow(schema), values) == expected


@pytest.mark.parametrize("kind", PLAIN, ids=str)
@pytest.mark.parametrize("quote", ["", '"'])
def test_each_edge_in_json_is_what_it_says_or_refused(kind: pa.DataType, quote: str) -> None:
    wholes = [(kind, ""), (pa.list_(kind), "[]"), (pa.struct({"a": kind}), "{}")]
    for whole, brackets in wholes:
        schema = pa.schema({"a": whole})
        open_, close = {"": ("", ""), "[]": ("[", "]"), "{}": ('{"a":', "}")}[brackets]
        values = [f'{{"a":{open_}{quote}{text}{quote}{close}}}'.encode() for text in EDGES]
        expected = outcomes(lambda value: exact.json_row(value, schema), values)  # noqa: B023
        assert parsed(JsonParser(schema), values) == parsed(by_pyarrow(schema), values) == expected


CSV_FIELDS = st.one_of(
    NUMBERS,
    TIMES,
    NUMBERS.map(lambda text: f'"{text}"'),
    NUMBERS.map(lambda text: f" {text}\t"),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    st.text('"a, ;0x', max_size=6),
    st.text('"a,', max_size=4).map(lambda text: '"' + text.replace('"', '""') + '"'),
    st.sampled_from(["", '""', "true", "false", "TRUE", " true", '"true"', "nan", "-inf", "Infinity"]),
)


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(PLAIN), st.sampled_from(PLAIN), st.sampled_from(",;\t|^ "), st.data())
def test_a_csv_line_is_what_it_says_or_refused(
    a: pa.DataType, b: pa.DataType, delimiter: str, data: st.DataObject
) -> None:
    schema = pa.schema({"a": a, "b": b})
    fields = st.one_of(*(st.lists(CSV_FIELDS, min_size=size, max_size=size) for size in (2, 2, 0, 1, 3)))
    line = fields.map(lambda fields: delimiter.join(fields).encode())
    values = data.draw(st.lists(line, min_size=1, max_size=4))
    oracle = outcomes(lambda value: exact.csv_row(value, schema, delimiter), values)
    assert parsed(CsvParser(schema, delimiter), values) == oracle


@pytest.mark.parametrize("kind", PLAIN, ids=str)
def test_each_edge_in_csv_is_what_it_says_or_refused(kind: pa.DataType) -> None:
    schema = pa.schema({"a": kind, "b": pa.string()})
    values = [text.encode() for edge in EDGES if "," not in edge for text in (f"{edge},1", f'"{edge}",x')]
    oracle = outcomes(lambda value: exact.csv_row(value, schema, ","), values)
    assert parsed(CsvParser(schema, ","), values) == oracle
