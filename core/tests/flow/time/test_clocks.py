"""The watermark of an operator: where it is after each epoch, whatever the partitions, their order and their pace."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.core.source import Part
from onefold.core.writing.dead_letters import BAD_COLUMNS
from onefold.flow.time.clocks import END, Clocks, ClockStatus, Highest, SourceEnd, Times
from onefold.flow.time.watermarks import Watermarks, monotonic

MINUTE = "60 seconds"
Read = Mapping[str, int | None]


def clocks(idle: str | None = None, sources: Iterable[str] = ("s",)) -> Clocks:
    return Clocks({uid: monotonic("at", idle=idle) for uid in sources})


def of(read: Read, named: Iterable[str] = "pq", ended: Iterable[str] = ()) -> Times:
    return Times(
        frozenset(("s", name) for name in named), {("s", name): us for name, us in read.items()}, frozenset(ended)
    )


def advanced(found: Clocks, epochs: Iterable[tuple[int, Read]], named: str = "pq") -> list[int | None]:
    """The watermark after each epoch, which has its time in seconds."""
    after = []
    for now_s, read in epochs:
        found.advance(of(read, named), now_s * 1_000)
        after.append(found.watermark_us)
    return after


def test_case_4_it_never_goes_back() -> None:
    assert advanced(clocks(), [(1, {"p": 25}), (2, {"p": 12}), (3, {"p": 29})], "p") == [25, 25, 29]


def test_case_5_it_is_the_lowest_of_all_partitions() -> None:
    assert advanced(clocks(), [(1, {"p": 25, "q": 3}), (2, {"q": 12})]) == [3, 12]


def test_case_6_a_partition_without_a_record_is_waited_for_and_named() -> None:
    found = clocks()
    assert advanced(found, [(1, {"p": 25}), (2, {"p": 31})]) == [None, None]
    assert found.status() == ClockStatus(None, "q", 1_000, None)


def test_case_7_a_silent_partition_does_not_count() -> None:
    assert advanced(clocks(MINUTE), [(0, {"p": 5, "q": 5}), (30, {"p": 25}), (61, {"p": 26})]) == [5, 5, 26]


def test_case_8_without_records_it_moves_when_silence_is_due_to_the_highest_of_all() -> None:
    found = clocks(MINUTE)
    assert advanced(found, [(0, {"p": 25, "q": 5})]) == [5]
    assert found.next_release_ms() == 60_000
    assert found.status() == ClockStatus(5, "q", 0, 60_000)
    assert advanced(found, [(60, {})]) == [25]
    assert found.next_release_ms() is None
    assert found.status() == ClockStatus(25), "it waits for none"


def test_case_9_a_partition_that_wakes_counts_again_and_takes_nothing_back() -> None:
    epochs = [(0, {"p": 5, "q": 5}), (61, {"p": 26}), (62, {"q": 7, "p": 50}), (63, {"q": 40})]
    assert advanced(clocks(MINUTE), epochs) == [5, 26, 26, 40]


@pytest.mark.parametrize("order", [*itertools.permutations("pqr")])
def test_case_10_in_whatever_order_partitions_fall_silent_it_ends_at_the_highest(order: tuple[str, ...]) -> None:
    found = clocks(MINUTE)
    advanced(found, [(at, {name: us}) for at, (name, us) in enumerate(zip(order, (9, 5, 7), strict=True))], "pqr")
    at_s = 3
    while (due_ms := found.next_release_ms()) is not None:
        assert due_ms // 1_000 > at_s
        at_s = due_ms // 1_000
        advanced(found, [(at_s, {})], "pqr")
    assert (found.watermark_us, at_s <= 62) == (9, True)


def test_case_11_a_partition_that_comes_later_is_waited_for_until_it_is_silent() -> None:
    epochs: list[tuple[int, Read]] = [(0, {"q": 2}), (1, {"p": 4}), (2, {"p": 31})]
    epochs += [(61, {}), (62, {"q": 12}), (63, {"q": 33})]
    assert advanced(clocks(MINUTE), epochs) == [None, 2, 2, 31, 31, 33]


def test_case_12_a_worker_without_a_partition_holds_nothing_and_moves_nothing() -> None:
    """Four workers read two partitions; each says what it has read, and all clocks get that of all."""
    found = clocks()
    for epoch, expected in (({"p": 25, "q": 3}, 3), ({"q": 12}, 12)):
        joined = Times()
        for own in ("p", "", "q", ""):
            highest = Highest("s", monotonic("at"))
            for name in epoch.keys() & {own}:
                highest.see(name, part(pa.record_batch([pa.array([epoch[name]], pa.timestamp("us"))], ["at"])))
            joined = joined.joined(highest.take(SourceEnd(("p", "q"))))
        found.advance(joined, 1)
        assert found.watermark_us == expected


def test_a_source_that_has_ended_does_not_count_and_when_all_have_it_is_the_end() -> None:
    found = clocks(sources=("s", "t"))
    named = frozenset({("s", "p"), ("t", "")})
    found.advance(Times(named, {("s", "p"): 7}), 1)
    assert found.watermark_us is None
    found.advance(Times(named, {}, frozenset("t")), 2)
    assert found.watermark_us == 7
    found.advance(Times(named, {}, frozenset("st")), 3)
    assert (found.watermark_us, found.next_release_ms()) == (END, None)


def test_a_partition_that_is_named_no_more_is_not_waited_for() -> None:
    found = clocks()
    advanced(found, [(1, {"p": 25, "q": 3})])
    assert advanced(found, [(2, {"p": 26})], "p") == [26]


def test_records_that_say_nothing_of_time_keep_a_partition_awake() -> None:
    assert advanced(clocks(MINUTE), [(0, {"p": 9, "q": 5}), (59, {"p": 10, "q": None}), (61, {"p": 11})]) == [5, 5, 5]


def test_what_is_remembered_makes_the_same_clocks() -> None:
    found = clocks(MINUTE, sources=("s", "t"))
    found.advance(Times(frozenset({("s", "p"), ("t", "q")}), {("s", "p"): 7}, frozenset("t")), 5)
    again = Clocks({uid: monotonic("at", idle=MINUTE) for uid in "st"}, found.as_rows())
    assert again.as_rows() == found.as_rows() and again.watermark_us == 7
    assert again.next_release_ms() == found.next_release_ms()


def test_another_idle_counts_from_the_second_epoch_after_a_start_on() -> None:
    """The first one may run again: it gives what it gave."""
    for idle, other, at in ((MINUTE, None, [26, 26]), (MINUTE, "90 seconds", [26, 26]), (None, MINUTE, [5, 27])):
        found = clocks(idle)
        advanced(found, [(0, {"p": 5, "q": 5})])
        again = Clocks({"s": monotonic("at", idle=other)}, found.as_rows())
        assert advanced(again, [(61, {"p": 26}), (62, {"p": 27})]) == at
        assert advanced(found, [(61, {"p": 26})]) == at[:1]


EPOCH = st.dictionaries(st.sampled_from("pqr"), st.none() | st.integers(0, 99), max_size=3)
EPOCHS = st.lists(st.tuples(st.integers(1, 70), EPOCH), max_size=8)


@given(EPOCHS, st.lists(st.integers(0, 2), min_size=24, max_size=24))
def test_it_is_the_same_however_partitions_are_shared_out_and_restored(
    epochs: list[tuple[int, Read]], shares: list[int]
) -> None:
    whole, split, now_s, to = clocks(MINUTE), clocks(MINUTE), 0, iter(shares)
    for passed_s, read in epochs:
        now_s += passed_s
        before = whole.watermark_us
        whole.advance(of(read, "pqr"), now_s * 1_000)
        parts: list[dict[str, int | None]] = [{}, {}, {}]
        for name, us in read.items():
            parts[next(to)][name] = us
        joined = Times()
        for part in parts:
            joined = joined.joined(of(part, "pqr"))
        split.advance(joined, now_s * 1_000)
        assert split.as_rows() == whole.as_rows()
        assert before is None or (whole.watermark_us or 0) >= before
        split = Clocks({"s": monotonic("at", idle=MINUTE)}, split.as_rows())


@given(EPOCHS, st.none() | st.lists(st.none() | st.integers(0, 99), min_size=8, max_size=8))
def test_the_next_release_is_the_first_time_at_which_it_moves_without_records(
    epochs: list[tuple[int, Read]], other: list[int | None] | None
) -> None:
    """Also beside another source, which is never silent."""
    policies = {"s": monotonic("at", idle=MINUTE)}
    named = {("s", name) for name in "pqr"}
    if other is not None:
        policies["t"], named = monotonic("at", idle=None), named | {("t", "x")}
    found, now_s = Clocks(policies), 0
    for (passed_s, read), us in zip(epochs, other or [None] * 8, strict=False):
        now_s += passed_s
        found.advance(
            Times(frozenset(named), {**of(read).read, **({} if us is None else {("t", "x"): us})}), now_s * 1_000
        )
    due_ms = found.next_release_ms()
    for at_ms in (now_s * 1_000 + step for step in range(0, 200_000, 1_000)):
        later = Clocks(policies, found.as_rows())
        later.advance(Times(frozenset(named)), at_ms)
        has_moved = later.watermark_us != found.watermark_us
        assert has_moved == (due_ms is not None and at_ms >= due_ms), at_ms


ROWS = pa.record_batch([pa.array([3, 9, 4], pa.timestamp("us"))], ["at"])


def part(rows: pa.RecordBatch, bad: int = 0) -> Part:
    return Part(rows, pa.RecordBatch.from_pylist([{}] * bad, BAD_COLUMNS))


def test_records_that_cannot_be_read_keep_their_partition_awake() -> None:
    highest = Highest("s", monotonic("at"))
    highest.see("p", part(ROWS.slice(0, 0), bad=1))
    assert highest.take(SourceEnd(("p", "q"))).read == {("s", "p"): None}


def test_files_and_parts_of_a_table_go_by_the_one_clock_of_their_source() -> None:
    for partitions, name in (("#files/",), "#files/"), ((), ""):
        highest = Highest("s", monotonic("at"))
        highest.see("#files/a.json", part(ROWS.slice(0, 1)))
        highest.see("#files/b.json", part(ROWS.slice(1)))
        at = Times(frozenset({("s", name)}), {("s", name): 9})
        assert highest.take(SourceEnd(partitions)) == at
        assert highest.take(SourceEnd(partitions, is_last=True)) == Times(at.named, {}, frozenset("s"))


def test_each_partition_that_positions_name_has_a_clock() -> None:
    highest = Highest("s", monotonic("at"))
    highest.see("t/1", part(ROWS))
    highest.see("t/1", part(ROWS.slice(2)))
    highest.see("t/0", part(ROWS.slice(0, 0)))
    assert highest.take(SourceEnd(("t/0", "t/1"))) == Times(frozenset({("s", "t/0"), ("s", "t/1")}), {("s", "t/1"): 9})


@pytest.mark.parametrize("kind", [pa.timestamp("s"), pa.timestamp("us"), pa.date32(), pa.date64()], ids=str)
def test_no_record_is_of_a_time_beyond_the_end_or_before_all_time(kind: pa.DataType) -> None:
    bits = 31 if kind == pa.date32() else 63
    for value, us in ((2**bits - 1, END - 1), (-(2**bits), 1 - END)):
        found = clocks()
        highest = Highest("s", monotonic("at"))
        column = pa.array([value], pa.int32() if kind == pa.date32() else pa.int64()).view(kind)
        highest.see("p", part(pa.record_batch([column], ["at"])))
        found.advance(highest.take(SourceEnd(("p",))), 1)
        assert found.watermark_us == us
        assert Clocks({"s": monotonic("at")}, found.as_rows()).as_rows() == found.as_rows()


def test_a_policy_of_ones_own_that_gives_no_whole_number_is_not_taken_for_one() -> None:
    class Wrong(Watermarks):
        def of(self, batch: pa.RecordBatch) -> int | None:
            return batch.num_rows / 2  # type: ignore[return-value]

    with pytest.raises(TypeError):
        Highest("s", Wrong()).see("p", part(pa.record_batch([[1]], ["at"])))
