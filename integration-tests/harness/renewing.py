"""Pages of the docs that tests write: `make docs` renews them, and a stale one fails its test."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["assert_renewed", "is_renewing"]

BEGIN, END = "<!-- written by {test} -->", "<!-- to here -->"


def is_renewing() -> bool:
    return bool(os.environ.get("ONEFOLD_RENEW_DOCS"))


def assert_renewed(page: Path, test: str, text: str) -> None:
    """Compare the part of `page` that `test` writes with `text`; with ONEFOLD_RENEW_DOCS set, write it."""
    begin = BEGIN.format(test=test)
    whole = page.read_text()
    assert begin in whole, f"{page.name} has no line {begin!r}"
    before, _, rest = whole.partition(begin)
    written, _, after = rest.partition(END)
    if is_renewing():
        page.write_text(f"{before}{begin}\n{text.strip()}\n{END}{after}")
    else:
        assert written.strip() == text.strip(), f"{page.name} is stale: run `make docs`, and look at the difference"
