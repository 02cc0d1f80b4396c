"""Arrow schemas as DDL texts."""

from __future__ import annotations

import pyarrow as pa
import pytest

from onefold.core import ConfigError
from onefold.core.values.ddl import ddl_of, schema_of


def test_a_ddl_is_read_back() -> None:
    found = schema_of("id LONG, `a b` decimal(12, 2), at: timestamp, n int, `t``k` string")
    assert ddl_of(found) == "id bigint, `a b` decimal(12,2), at timestamp, n int, `t``k` string"


def test_a_ddl_of_nested_types_is_read_back() -> None:
    text = "tags array<string>, by map<string, decimal(9,1)>, s struct<n: bigint, `a b`: array<struct<q: date>>>"
    assert ddl_of(schema_of(text)) == text
    assert schema_of(text).field("by").type == pa.map_(pa.string(), pa.decimal128(9, 1))


ODD = [
    "|id|id long,|id decimal|id int(3, 1)|id array<int|id array|m map<int>|id decimal(39,2)|id decimal(2,3)",
    "id long long|id long; x int|`a long|a struct<>|a long>|id decimal(0,0)",
]


@pytest.mark.parametrize("odd", "|".join(ODD).split("|"))
def test_a_text_that_is_no_ddl_is_refused(odd: str) -> None:
    with pytest.raises(ConfigError, match="is no list of columns") as refused:
        schema_of(odd)
    assert refused.value.code == "option-value"
