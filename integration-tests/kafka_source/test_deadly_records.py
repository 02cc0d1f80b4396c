"""Records that no row can be made of, in a pipeline: beyond their column's digits, or ending the process that parses
them."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from harness.support import Rig, through_spark

from onefold.core.errors import BadRecord
from onefold.sinks import PostgresSink
from onefold.spark.verify.verification import verify

pytestmark = pytest.mark.servers

DEADLY = "of this the parser dies"
Change = Callable[[Any], Any]
WAYS = pytest.mark.parametrize("change", [lambda rows: rows, through_spark], ids=["plain", "through Spark"])
AMOUNTS = "id long, amount decimal(38,18)"
BEYOND = [
    b'{"id":1,"amount":10000000000000000000000}',
    b'{"id":2,"amount":"1000000000000000000000000000000"}',
    b'{"id":3,"amount":99999999999999999999.9999999999999999999}',
    b'{"id":4,"amount":1e-999999999}',
    b'{"id":5,"amount":"0e-999999999"}',
    b'{"id":6,"amount":1e-41}',
    b'{"id":7,"amount":"1e\\u002d99999999"}',
    b'{"id":8,"amount":NaN}',
    b'{"id":9,"other":[-Infinity]}',
]


@pytest.fixture
def deadly(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all Python workers of what the test starts, parsers die of values with that text in them."""
    monkeypatch.setitem(rig.spark.sparkContext.environment, "ONEFOLD_FAILPOINT_DEADLY", DEADLY)


@pytest.mark.slow
@WAYS
def test_decimals_that_are_not_their_columns_become_dead_letters_on_both_paths(rig: Rig, change: Change) -> None:
    good = {n: Decimal(f"{n * 10**17}.{n:018d}") for n in range(10, 60)}
    values = [b'{"id":%d,"amount":%s}' % (n, str(amount).encode()) for n, amount in good.items()]
    rig.put_values([*values[:25], *BEYOND, *values[25:]], partitions=1)
    source = rig.source(schema=AMOUNTS, on_error="dead_letter", at_most=40)
    dead = PostgresSink(rig.url, "dead", delivery="two_phase")
    rig.run(rig.pipeline(source=source, change=change, dead_letters=dead))
    assert dict(rig.sql("SELECT id, amount FROM rows")) == good
    letters = rig.sql("SELECT source_offset, value FROM dead ORDER BY 1")
    assert letters == [(25 + index, value) for index, value in enumerate(BEYOND)]


@pytest.mark.slow
@pytest.mark.usefixtures("deadly")
@WAYS
def test_a_record_that_ends_its_worker_is_found_and_becomes_a_dead_letter(rig: Rig, change: Change) -> None:
    rig.put(900, partitions=2)
    fatal = b'{"id":-1,"n":0,"note":"' + DEADLY.encode() + b'"}'
    rig.put_values([fatal], partitions=1)
    rig.put_values([b'{"id":"x"}'], partitions=1)
    rig.put_values([fatal], partitions=1)
    rig.put(300, partitions=2)
    source = rig.source(on_error="dead_letter", at_most=700)
    letters = PostgresSink(rig.url, "dead", delivery="two_phase")
    sink = rig.sink()
    pipeline = rig.pipeline(sink, source=source, change=change, dead_letters=letters)
    rig.run(pipeline)
    assert rig.rows() == rig.sent
    found = rig.sql("SELECT source_topic, source_partition, source_offset, value, reason FROM dead ORDER BY 3")
    reason = "the library that parses it ends its process (SIGSEGV)"
    assert [found[0], found[2]] == [(rig.topic, 0, offset, fatal, reason) for offset in (450, 452)]
    assert [row[:4] for row in found[1:2]] == [(rig.topic, 0, 451, b'{"id":"x"}')] and len(found) == 3
    assert pipeline.bad_records.dead_letters == 3
    verified = verify(rig.spark, pipeline, sink, ["id"])
    assert verified.is_exact, verified


@pytest.mark.slow
@pytest.mark.usefixtures("deadly")
@WAYS
def test_where_bad_records_fail_the_error_names_the_record_that_ends_its_worker(rig: Rig, change: Change) -> None:
    rig.put(100, partitions=1)
    rig.put_values([b'{"id":-1,"note":"' + DEADLY.encode() + b'"}'], partitions=1)
    with pytest.raises(BadRecord, match=rf"{rig.topic}/0 offset 100: the library that parses it ends its process"):
        rig.run(rig.pipeline(source=rig.source(at_most=None), change=change))
    assert rig.rows() == []
