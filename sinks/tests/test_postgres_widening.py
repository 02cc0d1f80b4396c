"""What schema evolution may do to a column, without a server."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.core.errors import SchemaMismatch
from onefold.sinks.postgres.naming import TargetName
from onefold.sinks.postgres.schema.column_comparison import columns_of
from onefold.sinks.postgres.schema.target import TargetColumn, TargetTable
from onefold.sinks.postgres.schema.type_mapping import PostgresType, default_type, fit
from onefold.sinks.postgres.schema.widening import Alteration, addition, widening


def numeric(precision: int, scale: int) -> PostgresType:
    return PostgresType("numeric", ((precision << 16) | (scale & 0x7FF)) + 4, None, False, "numeric")


def scalar(name: str, typmod: int = -1) -> PostgresType:
    return PostgresType(name, typmod, None, False, name)


def array(element: str, typmod: int = -1) -> PostgresType:
    return PostgresType(f"_{element}", typmod, element, False, f"{element}[]")


@pytest.mark.parametrize(
    ("there", "rows", "becomes"),
    [
        (scalar("int2"), pa.int32(), "integer"),
        (scalar("int2"), pa.int64(), "bigint"),
        (scalar("int4"), pa.int64(), "bigint"),
        (scalar("int4"), pa.uint32(), "bigint"),
        (scalar("int8"), pa.uint64(), "numeric(20,0)"),
        (scalar("int4"), pa.decimal128(12, 2), "numeric(12,2)"),
        (scalar("int8"), pa.decimal128(12, 2), "numeric(21,2)"),
        (scalar("int2"), pa.decimal128(3, 0), "numeric(5,0)"),
        (scalar("float4"), pa.float64(), "double precision"),
        (scalar("float4"), pa.int32(), "double precision"),
        (numeric(10, 2), pa.decimal128(12, 2), "numeric(12,2)"),
        (numeric(10, 2), pa.decimal128(12, 4), "numeric(12,4)"),
        (numeric(10, 2), pa.decimal128(8, 4), "numeric(12,4)"),
        (numeric(10, 2), pa.int64(), "numeric(21,2)"),
        (numeric(1000, 0), pa.decimal128(10, 9), "numeric"),
        (scalar("date"), pa.timestamp("us"), "timestamp without time zone"),
        (scalar("timestamp", 3), pa.timestamp("us"), "timestamp without time zone"),
        (scalar("timestamptz", 0), pa.timestamp("us", "UTC"), "timestamp with time zone"),
        (scalar("time", 0), pa.time64("us"), "time without time zone"),
        (array("int4"), pa.list_(pa.int64()), "bigint[]"),
        (array("varchar", 9), pa.list_(pa.string()), "text[]"),
        (array("date"), pa.list_(pa.timestamp("us")), "timestamp without time zone[]"),
    ],
    ids=str,
)
def test_a_column_becomes_the_narrowest_type_for_what_is_there_and_for_the_rows(
    there: PostgresType, rows: pa.DataType, becomes: str
) -> None:
    change = widening(pa.field("c", rows), there)
    assert change is not None
    assert change.clause == f'ALTER COLUMN "c" TYPE {becomes}'


@pytest.mark.parametrize(
    ("there", "rows"),
    [
        (scalar("int8"), pa.int32()),  # fits as it is
        (scalar("varchar", 9), pa.string()),
        (scalar("int8"), pa.float64()),
        (scalar("int4"), pa.string()),
        (scalar("text"), pa.int64()),
        (scalar("float8"), pa.decimal128(10, 2)),
        (scalar("float8"), pa.int64()),
        (numeric(10, 2), pa.float64()),
        (scalar("date"), pa.timestamp("us", "UTC")),  # midnight where?
        (scalar("timestamp"), pa.timestamp("us", "UTC")),
        (scalar("timestamptz"), pa.timestamp("us")),
        (scalar("bool"), pa.int32()),
        (scalar("jsonb"), pa.int32()),
        (array("int4"), pa.int64()),
        (scalar("int4"), pa.list_(pa.int64())),
        (array("int4"), pa.list_(pa.list_(pa.int64()))),
        (array("text"), pa.list_(pa.int64())),
    ],
    ids=str,
)
def test_what_would_lose_or_change_something_is_no_widening(there: PostgresType, rows: pa.DataType) -> None:
    assert widening(pa.field("c", rows), there) is None


@given(st.integers(1, 38), st.integers(0, 38), st.integers(1, 38), st.integers(0, 38))
def test_a_wider_numeric_holds_every_digit_of_both(precision: int, scale: int, rows: int, after: int) -> None:
    there, kind = numeric(precision, min(scale, precision)), pa.decimal128(rows, min(after, rows))
    change = widening(pa.field("c", kind), there)
    if change is None:
        assert fit("c", kind, there) is not None
        return
    p, s = change.clause.rpartition("numeric(")[2].rstrip(")").split(",")
    wider = numeric(int(p), int(s))
    assert fit("c", kind, wider) is not None
    assert there.digits is not None and wider.digits is not None
    assert wider.digits[0] >= there.digits[0] and wider.digits[1] >= there.digits[1]


def _declared(text: str) -> pa.Field:
    """A field as Spark hands on a column of a table that says varchar(n)."""
    metadata = json.dumps({"__CHAR_VARCHAR_TYPE_STRING": text})
    return pa.field("c", pa.string(), metadata={b"SPARK::metadata::json": metadata.encode()})


def test_a_limit_grows_to_the_one_that_the_rows_declare_and_never_shrinks() -> None:
    ten = scalar("varchar", 14)
    assert widening(_declared("varchar(20)"), ten) == Alteration(
        'ALTER COLUMN "c" TYPE character varying(20)', "c", "character varying(20)"
    )
    assert widening(_declared("varchar(10)"), ten) is None
    assert widening(_declared("char(3)"), ten) is None
    assert widening(_declared("varchar(20)"), scalar("text")) is None


def test_a_collation_of_its_own_stays() -> None:
    change = widening(_declared("varchar(20)"), scalar("varchar", 14), 'pg_catalog."C"')
    assert change is not None
    assert change.clause == 'ALTER COLUMN "c" TYPE character varying(20) COLLATE pg_catalog."C"'


def test_a_new_column_has_the_type_that_a_new_table_would_give_it() -> None:
    for kind in (pa.int64(), pa.string(), pa.list_(pa.float32()), pa.struct([("a", pa.int32())])):
        declared = default_type(kind) or ""
        assert addition(pa.field("a b", kind)) == Alteration(f'ADD COLUMN "a b" {declared}', "a b", declared)
    assert addition(pa.field("c", pa.null())) is None
    assert addition(pa.field("c", pa.decimal256(76, 0))) is None


def test_the_error_of_a_wide_table_shows_all_that_does_not_fit_and_some_of_the_rest() -> None:
    text = PostgresType("text", -1, None, False, "text")
    columns = tuple(TargetColumn(f"c{n}", text, False, False, True) for n in range(100))
    target = TargetTable(TargetName("public", "t"), "r", columns, (), (), (), (), "me", True)
    struct = pa.struct([(f"field{n}", pa.int64()) for n in range(50)])
    schema = pa.schema([(f"c{n}", struct if n == 99 else pa.string()) for n in range(100)])
    with pytest.raises(SchemaMismatch) as caught:
        columns_of(target, schema)
    lines = caught.value.message.splitlines()
    assert len(lines) == 1 + 1 + 40 + 1 + 1
    assert lines[-2].startswith("  ! c99     struct<field0: int64, field1:")
    assert max(map(len, lines)) < 300
    assert lines[-1].strip() == "and 59 columns more, which fit"
