"""Which records a pipeline whose positions were moved has processed, passes over, or gets again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onefold.core import EpochRecord, EpochState, Positions, Range
from onefold.core.contract import MOVED
from onefold.core.moves import MoveNote, Spans, come_again, count, covered, passed_over, ranges

OFFSETS = st.integers(0, 12)


def at(**offsets: int) -> Positions:
    return Positions.of({f"t/{name[1:]}": offset for name, offset in offsets.items()})


def moved(epoch: int, start: Positions, end: Positions, *new: str) -> EpochRecord:
    note = MoveNote("somebody", "why not", new)
    return EpochRecord(
        "p", epoch, 1, EpochState.COMPLETE, Range(start, end), epoch, MOVED, -1, note.to_text(), sinks=("a", "b")
    )


def test_a_note_says_who_moved_the_positions_why_and_which_sinks_begin_there() -> None:
    record = moved(1, at(p0=1), at(p0=0), "a")
    assert record.is_move
    assert MoveNote.of(record) == MoveNote("somebody", "why not", ("a",))


def test_what_was_passed_over_is_a_gap_and_what_came_again_counts_once() -> None:
    moves = [moved(2, at(p0=10), at(p0=15)), moved(4, at(p0=20), at(p0=5))]
    assert covered(at(p0=0), moves[:1], at(p0=20)) == {"t/0": [(0, 10), (15, 20)]}
    assert covered(at(p0=0), moves, at(p0=7)) == {"t/0": [(0, 10), (15, 20)]}
    assert covered(at(p0=0), moves, at(p0=30)) == {"t/0": [(0, 30)]}


def test_a_sink_that_was_empty_begins_at_the_new_positions_and_the_others_do_not() -> None:
    moves = [moved(2, at(p0=10), at(p0=4), "a")]
    assert covered(at(p0=0), moves, at(p0=6), "a") == {"t/0": [(4, 6)]}
    assert covered(at(p0=0), moves, at(p0=6), "b") == covered(at(p0=0), moves, at(p0=6)) == {"t/0": [(0, 10)]}


def test_a_move_back_into_what_was_passed_over_repeats_nothing() -> None:
    moves = [moved(2, at(p0=10), at(p0=15))]
    assert count(come_again(at(p0=0), moves, at(p0=15), at(p0=10))) == 0
    assert come_again(at(p0=0), moves, at(p0=15), at(p0=8)) == {"t/0": [(8, 10)]}
    assert come_again(at(p0=0), moves, at(p0=17), at(p0=8)) == {"t/0": [(8, 10), (15, 17)]}


def test_of_a_move_ahead_only_what_nobody_processed_is_passed_over() -> None:
    assert passed_over(at(p0=0), [], at(p0=5), at(p0=8)) == {"t/0": [(5, 8)]}
    moves = [moved(2, at(p0=10), at(p0=3))]
    assert count(passed_over(at(p0=0), moves, at(p0=4), at(p0=9))) == 0
    assert passed_over(at(p0=0), moves, at(p0=4), at(p0=12)) == {"t/0": [(10, 12)]}
    assert passed_over(at(p0=0), moves, at(p0=4), at(p0=2)) == {"t/0": []}
    later = [moved(2, at(p0=2), at(p0=7)), moved(4, at(p0=9), at(p0=0))]
    assert passed_over(at(p0=0), later, at(p0=0), at(p0=5)) == {"t/0": [(2, 5)]}, "it ends before what was processed"


def test_a_partition_that_came_later_begins_at_its_first_record() -> None:
    assert covered(at(p0=5), [], at(p0=6, p1=3)) == {"t/0": [(5, 6)], "t/1": [(0, 3)]}


def test_spans_are_ranges_of_every_partition_in_the_topics_of_now() -> None:
    like = Positions.of({"t/0": 20, "t/1": 9}, {"t/id": "x"})
    first, second = ranges({"t/0": [(0, 10), (15, 20)], "t/1": [(0, 9)]}, like)
    assert (first.start.items, first.end.items) == (at(p0=0, p1=0).items, at(p0=10, p1=9).items)
    assert (second.start.items, second.end.items) == (at(p0=15, p1=9).items, at(p0=20, p1=9).items)
    assert first.end.topic_ids() == second.start.topic_ids() == {"t": "x"}
    assert ranges({}, like) == (Range(like, like),)


@given(st.lists(st.tuples(OFFSETS, OFFSETS), max_size=4), OFFSETS, OFFSETS)
def test_each_record_is_covered_passed_over_or_still_to_come(steps: list[tuple[int, int]], stop: int, to: int) -> None:
    """`steps`: how far each life of the pipeline read, and where it was moved then."""
    begin, moves, processed = 0, list[EpochRecord](), set[int]()
    for number, (read, then) in enumerate(steps):
        processed |= {*range(begin, begin + read)}
        moves.append(moved(number + 1, at(p0=begin + read), at(p0=then)))
        begin = then
    processed |= {*range(begin, begin + stop)}
    stands = at(p0=begin + stop)
    assert flat(covered(at(p0=0), moves, stands)) == processed
    again = flat(come_again(at(p0=0), moves, stands, at(p0=to)))
    assert again == {offset for offset in processed if offset >= to}
    passed = flat(passed_over(at(p0=0), moves, stands, at(p0=to)))
    assert passed == {*range(begin + stop, to)} - processed


def flat(spans: Spans) -> set[int]:
    found = [offset for span in spans.get("t/0", []) for offset in range(*span)]
    assert len(found) == len(set(found))
    return set(found)
