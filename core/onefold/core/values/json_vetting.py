"""JSON values that pyarrow's reader takes though they are none, or that would end its process: found beforehand.

It reads NaN, Inf and Infinity as numbers, where nobody asked for the field, too; and decimals of tiny exponents as
`values.decimals` says. One look over all bytes finds that there is nothing of the kind, as a rule. A value with
something like it is read a second time, by Python's json.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.values.decimals import TINY, is_tiny

_NO_NUMBER = r"[:,\[ \t\r\n-](?:NaN|Inf(?:inity)?)[,}\] \t\r\n]"
# A number or a text that is one, with an exponent of two digits; or with some of these characters escaped.
_TINY = r'[0-9.][eE]-[0-9]{2,}[",}\] \t\r\n]|\\u00(?:2[dD]|3[0-9]|[46]5)'
_DEPTH_MAX = 300  # what Python's json surely reads, whatever called it
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


class _Object(list[tuple[str, Any]]):
    """With every key, also one that comes twice."""


class Vetting:
    """What must not get to pyarrow's reader where these columns are asked for."""

    def __init__(self, schema: pa.Schema) -> None:
        self._columns = pa.struct(list(schema))
        has_decimals = _has_decimal(self._columns)
        self._literals = ("NaN", "Inf", *(("e-", "E-", r"\\u00") if has_decimals else ()))
        self._pattern = f"{_NO_NUMBER}|{_TINY}" if has_decimals else _NO_NUMBER

    def refused(self, lines: pa.Buffer, values: Callable[[], pa.BinaryArray]) -> tuple[int, str] | None:
        """The first such value and what is wrong with it. `lines` are all values, as they lie there."""
        ends = pa.py_buffer(array("q", (0, lines.size)))  # pyarrow's first array of Python's values imports pandas
        whole = pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, lines])
        if not any(pc.match_substring_regex(whole, literal)[0].as_py() for literal in self._literals):
            return None
        each = values()
        suspects = pc.indices_nonzero(pc.match_substring_regex(each, self._pattern)).to_pylist()
        reasons = ((index, self._reason(each[index].as_py())) for index in suspects)
        return next(((index, reason) for index, reason in reasons if reason is not None), None)

    def _reason(self, value: bytes) -> str | None:
        if (depth := _depth(value)) > _DEPTH_MAX:
            return f"it has NaN, or a tiny exponent, and {depth} levels, of which {_DEPTH_MAX} at most can be searched"
        try:
            found = json.loads(
                value.decode(), parse_float=str, parse_int=str, parse_constant=_refuse, object_pairs_hook=_Object
            )
        except ValueError as error:
            return f"not JSON: {error}"
        return TINY if any(map(is_tiny, _decimals(found, self._columns))) else None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def _decimals(found: Any, kind: pa.DataType) -> Iterator[str]:
    """The texts of all decimals in a value, as far as it is what its type says."""
    if isinstance(found, str):
        if pa.types.is_decimal(kind):
            yield found
    elif isinstance(found, _Object):
        if pa.types.is_struct(kind):
            inside = [(kind[i].name, kind[i].type) for i in range(kind.num_fields)]
            for key, item in found:
                for name, inner in inside:
                    if name == key:
                        yield from _decimals(item, inner)
    elif isinstance(found, list) and pa.types.is_list(kind):
        for item in found:
            yield from _decimals(item, kind.value_type)


def _has_decimal(kind: pa.DataType) -> bool:
    return pa.types.is_decimal(kind) or any(_has_decimal(kind.field(i).type) for i in range(kind.num_fields))


def _depth(value: bytes) -> int:
    depth = deepest = 0
    for found in _BRACKETS.finditer(value):
        depth += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(found[0], 0)
        deepest = max(deepest, depth)
    return deepest
