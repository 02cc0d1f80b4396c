"""Which rows of a key replace each other in a sink, and by which order they can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc
import pytest
from flow_parts import ORDERS, AnySink, orders, sink_node
from harness.errors import raises

from onefold.core import ConfigError, Upsert
from onefold.flow import StatefulProcessor, Stream, count

BY_ACCOUNT = Upsert(("account",), ("onefold_epoch",))


class Emitting(StatefulProcessor):
    """Any number of rows of a key."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        del key, rows, timerValues
        return ()


def side_output(stream: Stream) -> Stream:
    both = stream.key_by("account").process(Emitting(), "id long", sides={"late": "account long, n long"}, uid="p")
    both.sink(AnySink("main"))
    return both.side("late")


def counted(stream: Stream, uid: str = "n") -> Stream:
    return stream.key_by("account").aggregate(uid=uid, n=count())


TIES: dict[str, Callable[[Stream], Stream]] = {
    "a processor": lambda s: s.key_by("account").process(Emitting(), "account long, n long", uid="p"),
    "a processor's rows, filtered": lambda s: TIES["a processor"](s).filter(pc.field("n") > 1).select("account", "n"),
    "a processor's side output": lambda s: side_output(s),
    "a source": lambda s: s.select("account", n=pc.field("id")),
    "a function of batches behind an aggregate": lambda s: counted(s).map_batches(lambda batch: batch),
    "a function of rows behind an aggregate": lambda s: counted(s).flat_map(lambda row: [row], "account long, n long"),
    "two aggregates": lambda s: counted(s).union(counted(s, "other")),
}


@pytest.mark.parametrize("makes", TIES.values(), ids=TIES)
def test_rows_of_a_key_in_one_epoch_that_only_the_epoch_orders_are_refused(makes: Callable[[Stream], Stream]) -> None:
    _, stream = orders()
    with raises(ConfigError, "epoch-order-ties", "'archive'", "'onefold_epoch'"):
        makes(stream).sink(AnySink(replaces=BY_ACCOUNT))


@pytest.mark.parametrize("makes", TIES.values(), ids=TIES)
@pytest.mark.parametrize("order", [("onefold_epoch", "n"), ("n", "onefold_epoch"), ("n",), ()])
def test_rows_that_another_column_orders_within_an_epoch_are_not(
    makes: Callable[[Stream], Stream], order: tuple[str, ...]
) -> None:
    flow, stream = orders()
    makes(stream).sink(AnySink(replaces=Upsert(("account",), order)))
    assert flow.graph().written(sink_node(flow.graph(), "archive")).names[:2] == ["account", "n"]


def test_rows_with_an_epoch_column_of_their_own_are_ordered_by_that() -> None:
    flow, stream = orders()
    stream.with_columns(onefold_epoch=pc.field("id")).sink(AnySink(replaces=BY_ACCOUNT))
    assert flow.graph().written(sink_node(flow.graph(), "archive")).names == [*ORDERS.names, "onefold_epoch"]
