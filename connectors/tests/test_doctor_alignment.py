"""What `onefold doctor` says of how a flow's barriers are aligned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onefold.core.findings import Finding, Level
from onefold.flow import Flow
from onefold.operate.doctor import Diagnosis, SinkDiagnosis
from onefold.operate.doctor.runtime import examine_runtime
from onefold.pipeline import Engine, Pipeline
from onefold.sinks import KafkaSink, PostgresSink
from onefold.sources import KafkaSource


def found_of(root: Path, sink: Any, **settings: Any) -> list[Finding]:
    flow = Flow("shop")
    source = KafkaSource("orders", bootstrap_servers="localhost:1", format="json", schema="id long, account long")
    rows = flow.source(source, uid="orders")
    (rows if sink is KEYED else rows.rebalance()).select("id").sink(sink)
    pipeline = Pipeline(flow, runtime=Engine(workers=2, **settings), checkpoint=str(root), directory=str(root))
    found, _ = examine_runtime(pipeline)
    return found


def of_barriers(found: list[Finding]) -> list[Finding]:
    return [each for each in found if " once" in each.says]


TABLE = PostgresSink("postgresql://localhost/shop", table="orders", delivery="two_phase")
KEYED = KafkaSink("ids", bootstrap_servers="localhost:1", delivery="keyed", id=("id",))


def test_of_aligned_barriers_it_says_nothing(tmp_path: Path) -> None:
    assert not of_barriers(found_of(tmp_path, TABLE))


def test_unaligned_barriers_are_fine(tmp_path: Path) -> None:
    (told,) = of_barriers(found_of(tmp_path, TABLE, alignment="unaligned"))
    assert told.level is Level.FINE and "exactly once" in told.says


def test_at_least_once_breaks_the_guarantee_of_each_sink(tmp_path: Path) -> None:
    found = found_of(tmp_path, TABLE, alignment="at_least_once")
    (told,) = of_barriers(found)
    assert told.level is Level.PROBLEM and "count twice in select-1" in told.says
    diagnosis = Diagnosis("shop", (), (), tuple(found), (SinkDiagnosis("orders", TABLE.guarantee(), ()),))
    assert diagnosis.invariants(diagnosis.sinks[0])["no-duplicate"] == told.says and not diagnosis.holds


@pytest.mark.parametrize("alignment", ["unaligned", "at_least_once"])
def test_a_sink_that_writes_through_is_refused_as_a_start_does(tmp_path: Path, alignment: str) -> None:
    codes = [each.error.code for each in found_of(tmp_path, KEYED, alignment=alignment) if each.error is not None]
    assert codes == ["alignment-write-through"]
