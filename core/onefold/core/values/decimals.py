"""Decimals out of texts: exactly, or not at all.

pyarrow (18.0 to 26.0.1 at least) multiplies the digits up to the wanted scale in 128 bits, without a sound look whether
the product still fits: 10^22 into decimal(38,18) becomes 131811359292784559562.13... Of a
text's exponent it looks up a power of ten in a table of 77 at any place, beyond it too: by chance 1e-41 becomes 0, and
1e-999999999 ends the process. Here digits and exponent have bounds, within which the product has
76 digits at most. These fit 256 bits, and from there to the wanted type pyarrow's cast is exact.
"""

from __future__ import annotations

import re
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

DIGITS_MAX = 38  # of a text, without zeros in front, its exponent written out
_EXPONENT_MIN = -38
TINY = f"a decimal's exponent is below {_EXPONENT_MIN}"

_EXPONENT = re.compile(r"[eE]-0*([0-9]+)")
_NUMBER = re.compile(r"[+-]?(?=\.?[0-9])0*([0-9]*)\.?([0-9]*)(?:[eE]([+-]?0*[0-9]{1,9}))?")


def wide(kind: pa.DataType) -> pa.DataType:
    """The wide decimal type as which a text is parsed first: pyarrow counts the digits before it applies the exponent.

    Not for texts that are `is_tiny`.
    """
    return pa.decimal256(DIGITS_MAX, kind.scale)


def is_tiny(text: str) -> bool:
    """Whether the number has an exponent that pyarrow must not see."""
    found = _EXPONENT.search(text)
    return found is not None and (len(found[1]) > 2 or int(found[1]) > -_EXPONENT_MIN)


def decimals_of(texts: pa.StringArray, kind: pa.DataType) -> pa.Array:
    """The texts as decimals; blanks around them do not matter. Raises `pa.ArrowInvalid` where one is none."""
    trimmed = pc.ascii_trim(texts, " \t")
    # A cast does not count the digits.
    odd = pc.or_(pc.greater(pc.binary_length(trimmed), DIGITS_MAX), pc.match_substring_regex(trimmed, "[eE]"))
    if odd.true_count:
        cells = trimmed.to_pylist()
        for index in pc.indices_nonzero(odd).to_pylist():
            cells[index] = _plain(cells[index])
        trimmed = pa.array(cells, pa.string())
    return trimmed.cast(wide(kind)).cast(kind)


def parsed(texts: pa.StringArray, kind: pa.DataType) -> pa.Array:
    """The values that the texts are written for. Raises `pa.ArrowInvalid` where one is none.

    As pyarrow's cast, but for decimals, and for hexadecimal integers, which the cast would read, and wrap around.
    """
    if pa.types.is_decimal(kind):
        return decimals_of(texts, kind)
    if pa.types.is_integer(kind):
        hexadecimal = pc.match_substring(texts, "x", ignore_case=True)
        if hexadecimal.true_count:
            raise pa.ArrowInvalid(f"{texts.filter(hexadecimal)[0].as_py()!r} is no decimal integer")
    return texts.cast(kind)


def _plain(text: str) -> str:
    """The number without an exponent."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise pa.ArrowInvalid(f"{text!r} is no number")
    exponent = int(found[3] or 0)
    digits = len(found[1]) + len(found[2]) + max(exponent - len(found[2]), 0)
    if digits > DIGITS_MAX:
        raise pa.ArrowInvalid(f"{text} has {digits} digits, more than {DIGITS_MAX}")
    if exponent < _EXPONENT_MIN:
        raise pa.ArrowInvalid(TINY)
    return f"{Decimal(text):f}"
