"""Texts into decimals: exactly, or not at all.

pyarrow (18.0 and 26.0.1, and those between) takes a text's digits as a 128-bit number, and multiplies them up to the
column's scale without a sound look whether the product still fits: 10^22 into decimal(38,18) becomes
131811359292784559562.13... Of an exponent it looks up a power of ten in a table of 77 at any place, beyond it too: by
chance 1e-41 becomes 0, and 1e-999999999 ends the process. Here digits and exponent have bounds, within which the
product has 76 digits at most. These fit 256 bits, and from there to the column's own type pyarrow's cast is exact.
"""

from __future__ import annotations

import re
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["DIGITS_MAX", "EXPONENT_MIN", "TINY", "decimals_of", "is_tiny", "wide"]

DIGITS_MAX = 38  # of a text, without zeros in front, its exponent written out
EXPONENT_MIN = -38
TINY = f"a decimal's exponent is below {EXPONENT_MIN}"

_EXPONENT = re.compile(r"[eE]-0*([0-9]+)")
_NUMBER = re.compile(r"[+-]?0*([0-9]*)\.?([0-9]*)(?:[eE]([+-]?0*[0-9]{1,9}))?")


def wide(kind: pa.Decimal128Type) -> pa.Decimal256Type:
    """What to have a text parsed as, whose exponent is none of `is_tiny`, by a parser that counts the digits first."""
    return pa.decimal256(DIGITS_MAX, kind.scale)


def is_tiny(text: str) -> bool:
    """Whether the number has an exponent that pyarrow must not see."""
    found = _EXPONENT.search(text)
    return found is not None and (len(found[1]) > 2 or int(found[1]) > -EXPONENT_MIN)


def decimals_of(texts: pa.StringArray, kind: pa.Decimal128Type) -> pa.Array:
    """The texts as decimals; blanks around them do not matter. Raises `ValueError` with the first bad one's index."""
    trimmed = pc.ascii_trim(texts, " \t")
    # A cast does not count the digits.
    odd = pc.or_(pc.greater(pc.binary_length(trimmed), DIGITS_MAX), pc.match_substring_regex(trimmed, "[eE]"))
    if odd.true_count:
        cells = trimmed.to_pylist()
        for index in pc.indices_nonzero(odd).to_pylist():
            cells[index] = _plain(index, cells[index])
        trimmed = pa.array(cells, pa.string())
    try:
        return trimmed.cast(wide(kind)).cast(kind)
    except pa.ArrowInvalid as error:
        raise ValueError(None, str(error)) from None


def _plain(index: int, text: str) -> str:
    """The number without an exponent."""
    found = _NUMBER.fullmatch(text)
    if found is None or not (found[1] or found[2] or "0" in text):
        raise ValueError(index, f"{text!r} is no number")
    exponent = int(found[3] or 0)
    digits = len(found[1]) + len(found[2]) + max(exponent - len(found[2]), 0)
    if digits > DIGITS_MAX:
        raise ValueError(index, f"{text} has {digits} digits, more than {DIGITS_MAX}")
    if exponent < EXPONENT_MIN:
        raise ValueError(index, TINY)
    return f"{Decimal(text):f}"
