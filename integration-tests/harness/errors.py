"""How tests assert an error: by its code, and by the names in its text that a user needs; never by its sentences."""

from __future__ import annotations

import re
from typing import TypeVar

import pytest
from _pytest.raises import RaisesExc

from onefold.core import OnefoldError

__all__ = ["raises"]

E = TypeVar("E", bound=OnefoldError)


def raises(kind: type[E] | tuple[type[E], ...], code: str, *names: str) -> RaisesExc[E]:
    """As pytest.raises: an error of this code, whose text has all of `names`, in any order."""
    named = "".join(f"(?=.*{re.escape(name)})" for name in names)
    return pytest.raises(kind, match=rf"(?s){named}.*\[{re.escape(code)}\](\n|$)")
