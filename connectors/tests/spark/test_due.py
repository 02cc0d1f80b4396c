"""What `onefold verify` expects of a sink that is younger than its pipeline's records."""

from __future__ import annotations

import pytest

from onefold.core import EpochRecord, EpochState, Positions, Range
from onefold.core.contract import MOVED
from onefold.core.moves import MoveNote
from onefold.spark.verify.origin import Due
from onefold.store.savepoint_notes import Beginning

AT = [Positions.of({"t/0": 10 * n}, {"t/id": "topic-1"}) for n in range(9)]
BEGINNING = Beginning(3, AT[3], ("empty",))


def moved(epoch: int, at: Positions, to: Positions, note: MoveNote) -> EpochRecord:
    return EpochRecord("p", epoch, 1, EpochState.COMPLETE, Range(at, to), epoch, MOVED, -1, note.to_text())


def offsets(due: Due, sink: str, end: Positions) -> list[tuple[object, object]]:
    return [(dict(each.start.items)["t/0"], dict(each.end.items)["t/0"]) for each in due.ranges(end, sink)]


def test_a_sink_that_was_empty_when_the_pipeline_began_with_a_savepoint_is_to_have_what_came_since() -> None:
    due = Due(AT[0], (), BEGINNING)
    assert due.ranges(AT[5], "empty") == (Range(AT[3], AT[5]),)
    assert [*due.notes(AT[5], "empty")] == [
        "the sink begins after epoch 3, of the savepoint that the pipeline began with, when it was empty: what earlier"
        " epochs wrote is not expected"
    ]


@pytest.mark.parametrize("due", [Due(AT[0], (), BEGINNING), Due(AT[0], (), None)])
def test_a_copied_table_and_one_of_a_pipeline_that_began_by_itself_are_to_have_all(due: Due) -> None:
    assert due.ranges(AT[5], "copied") == (Range(AT[0], AT[5]),)
    assert [*due.notes(AT[5], "copied")] == []


def test_a_sink_that_was_renamed_or_whose_positions_moved_still_begins_where_it_began() -> None:
    moves = [
        moved(4, AT[4], AT[4], MoveNote("me", renamed=(("new", "empty"),))),
        moved(6, AT[5], AT[6], MoveNote("me")),
    ]
    due = Due(AT[0], moves, BEGINNING)
    assert offsets(due, "new", AT[7]) == [(30, 50), (60, 70)]
    assert offsets(due, "empty", AT[7]) == [(30, 50), (60, 70)]
    assert offsets(due, "copied", AT[7]) == [(0, 50), (60, 70)]
    passed, begins = due.notes(AT[7], "new")
    assert passed.startswith("10 records were passed over") and begins.startswith("the sink begins after epoch 3")


def test_a_sink_that_was_added_later_begins_there() -> None:
    due = Due(AT[0], [moved(5, AT[4], AT[4], MoveNote("me", new=("empty",)))], BEGINNING)
    assert offsets(due, "empty", AT[7]) == [(40, 70)]
    (begins,) = due.notes(AT[7], "empty")
    assert begins.startswith("the sink begins after epoch 5, when it was empty, or added to the pipeline")
