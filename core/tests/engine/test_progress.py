"""The line of a flow's log that says how far it is."""

from __future__ import annotations

import pytest

from onefold.engine.driver.progress import counted


@pytest.mark.parametrize(
    ("number", "thing", "said"), [(0, "row", "0 rows"), (1, "epoch", "1 epoch"), (1200, "record", "1,200 records")]
)
def test_one_is_no_plural(number: int, thing: str, said: str) -> None:
    assert counted(number, thing) == said
