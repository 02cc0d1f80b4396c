"""Documents as jsonb writes them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from onefold.spark.verify.comparing.stored_forms import _documents


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (
            '{"b":1,"a":{"d":1.50,"c":[true,null,"\\u00e9"]},"b":2}',
            '{"a": {"c": [true, null, "é"], "d": 1.50}, "b": 2}',
        ),
        ("-0", "0"),
        ("1e3", "1000"),
        (None, None),
        ("no document", "no document"),
        ("NaN", "NaN"),
        ("1e999999", "1e999999"),
        ('"\\ud800"', '"\\ud800"'),
    ],
)
def test_a_document_is_in_one_form_and_what_jsonb_refuses_is_as_it_is(text: str | None, written: str | None) -> None:
    assert _documents(pa.array([text], pa.string())).to_pylist() == [written]
