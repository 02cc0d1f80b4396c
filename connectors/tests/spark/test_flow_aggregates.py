"""Aggregates with sub-keys by key alone, in windows and in sessions: on the engine, and on Spark as Spark calls it."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
from flow_parts import AnySink
from spark_model import SparkTest
from sub_keyed import SUB_KEYED, checked
from timed_rows import written_by
from window_cases import source

from onefold.core import Upsert
from onefold.flow import EachEpoch, Flow, Session, Sliding, Stream, Tumbling, count, sum_
from onefold.flow.testing import FlowTest

ALL: Any = {"total": sum_("amount"), "n": count(), **SUB_KEYED}


def flow() -> Flow:
    made = Flow("aggregates", max_parallelism=16)
    rows = source(made).key_by("key")
    so_far: dict[str, Stream] = {
        "keyed": rows.aggregate(uid="keyed", **ALL),
        "tens": rows.window(Tumbling("10 seconds"), lateness="5 seconds").aggregate(uid="tens", **ALL),
        "moving": rows.window(Sliding("6 seconds", "2 seconds")).aggregate(uid="moving", **ALL),
        "early": rows.window(Tumbling("9 seconds"), trigger=EachEpoch()).aggregate(uid="early", **ALL),
        "visits": rows.window(Session("3 seconds")).aggregate(uid="visits", **ALL),
    }
    for name, stream in so_far.items():
        key = ("key",) if name == "keyed" else ("key", "window_start")
        stream.sink(AnySink(name, replaces=Upsert(key, ("onefold_epoch",) if name in ("keyed", "tens") else ())))
    return made


def told(written: dict[str, list[dict[str, Any]]]) -> dict[str, list[str]]:
    """The rows of each sink, whose results with sub-keys are those of their rows."""
    rows = {name: [{**row} for row in of] for name, of in written.items()}
    return {name: sorted(map(_one, of)) for name, of in rows.items()}


def _one(row: dict[str, Any]) -> str:
    assert row["total"] == sum(each["amount"] for each in row["rows"]) and row["n"] == len(row["rows"])
    return str(checked({name: value for name, value in row.items() if name != "onefold_epoch"}))


def test_the_engine_and_spark_give_the_results_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(0)
    rows = [f"{chance.choice('pq')}:{chance.choice('ab')}@{at + chance.randint(0, 9)}={at % 4}" for at in range(20)]
    text = " | ".join(" ".join(rows[at : at + 5]) for at in range(0, 20, 5)) + " END"
    found = []
    for made, restores in ((FlowTest, False), (FlowTest, True), (partial(SparkTest, patch=monkeypatch), False)):
        test = made(flow())
        found.append([told(written) for written in written_by(test, text, restores)])
        test.close()
    assert found[0] == found[1] == found[2]
    assert all(any(written[name] for written in found[0]) for name in found[0][0])
