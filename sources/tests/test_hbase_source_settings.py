"""HBaseSource without a server: what its settings come to."""

from __future__ import annotations

import datetime as dt

import pytest

from onefold.clients.hbase import HBaseSettings
from onefold.sources import HBaseSource

SECOND = dt.datetime(1970, 1, 1, 0, 0, 2, tzinfo=dt.UTC)
HALF = dt.timedelta(microseconds=500)


@pytest.mark.parametrize(
    ("moment", "first_ms"), [(SECOND, 2000), (SECOND + HALF, 2001), (SECOND - HALF, 2000), (2000, 2000)]
)
def test_a_time_range_begins_and_ends_with_the_first_millisecond_that_is_not_before_it(
    moment: dt.datetime | int, first_ms: int
) -> None:
    source = HBaseSource("h:1", "t", row_key="id", family="f", since=moment)
    assert source.range_ms == (first_ms, 2**63 - 1)
    assert HBaseSource("h:1", "t", row_key="id", family="f", until=moment).range_ms == (0, first_ms)


def test_every_setting_of_a_connection_has_its_option() -> None:
    settings = HBaseSettings("h:1,i:2", "buffered", "compact", 7.5, 9, 1 << 20, 9999, "hbase")
    source = HBaseSource(
        settings,
        "s:t",
        row_key="id integer",
        salt=16,
        columns="a = f:a integer",
        tombstone_column="f:_d",
        since=7,
        deleted_as="gone",
    )
    assert HBaseSource.from_options(source.options()).settings == settings
    assert HBaseSource.from_options({k.lower(): v for k, v in source.options().items()}).options() == source.options()
