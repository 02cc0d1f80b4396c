"""The log of the files that were read: small positions that cover all of it, and what is lost of it is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from harness.errors import raises
from hypothesis import given
from hypothesis import strategies as st

from onefold.core.errors import CheckpointMismatch, DataLoss
from onefold.core.positions import Positions
from onefold.core.source import MemoryJournal
from onefold.sources import FileSource
from onefold.sources.files import file_log
from onefold.sources.files.file_log import KEPT, Entry, FileLog
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.journal import StoreJournal

BASE = "/data/in"
MANY = [""] * 10**6  # so many are there that none is forgotten


def entry(number: int) -> Entry:
    return Entry(f"{BASE}/{number:06}.json", f"10:{number}", f"{number:016x}")


def epoch(log: FileLog, at: str, *numbers: int) -> str:
    new = [entry(number) for number in numbers]
    end = log.extended(log.at(at), BASE, new, (), MANY, None)
    log.completed(end)
    return end


def known(journal: MemoryJournal, at: str) -> set[str]:
    return {path[len(BASE) + 1 : -5] for path in FileLog(journal, "in").at(at).known}


@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=150), restarts=st.sets(st.integers(0, 150)))
def test_the_log_has_each_file_once_however_many_came_at_a_time_and_whoever_went_on(
    sizes: list[int], restarts: set[int]
) -> None:
    journal, at, count = MemoryJournal(), "", 0
    log = FileLog(journal, "in")
    for number, size in enumerate(sizes):
        if number in restarts:
            log = FileLog(journal, "in")
        log.extended(log.at(at), BASE, [entry(10**6 + number)], (), MANY, None)  # its epoch never opens
        before, at = at, epoch(log, at, *range(count, count + size))
        count += size
        assert log.new_of(before, at) == [entry(each) for each in range(count - size, count)]
        assert len(at) < 50
    found = FileLog(journal, "in").at(at)
    assert sorted(found.known) == [entry(number).path for number in range(count)]
    assert sum(files for _, files in found.index.segments) == count
    assert len(found.index.segments) <= 4 * 7 + count // file_log.SEGMENT_FILES + 1


def test_an_epoch_writes_about_its_own_files_and_what_nobody_needs_goes() -> None:
    journal, at = MemoryJournal(), ""
    log, written = FileLog(journal, "in"), 0
    write = journal.write

    def counted(texts: dict[str, str]) -> None:
        nonlocal written
        written += sum(map(len, texts.values()))
        write(texts)

    journal.write = counted  # type: ignore[method-assign, assignment]
    for number in range(4096):
        at = epoch(log, at, number)
    assert written < 4096 * 3000
    assert len(journal.texts) < 4 * KEPT + 40
    assert len(known(journal, at)) == 4096


def test_positions_behind_the_last_one_can_be_asked_for_and_leftovers_of_others_go() -> None:
    journal, ends = MemoryJournal(), [""]
    log = FileLog(journal, "in")
    for number in range(10):
        ends.append(epoch(log, ends[-1], number))
    left = FileLog(journal, "in")
    never = left.extended(left.at(ends[-1]), BASE, [entry(99)], (), (), None)
    log = FileLog(journal, "in")
    for number in range(10, 70):
        ends.append(epoch(log, ends[-1], number))
    assert never.partition(":")[2] not in journal.texts
    for number, at in enumerate(ends[-KEPT:], len(ends) - KEPT):
        assert len(known(journal, at)) == number


def test_what_nobody_needs_goes_also_where_each_epoch_is_planned_before_the_one_before_is_complete() -> None:
    journal, at = MemoryJournal(), ""
    log = FileLog(journal, "in")
    at = log.extended(log.at(at), BASE, [entry(0)], (), MANY, None)
    for number in range(1, 500):
        ahead = log.extended(log.at(at), BASE, [entry(number)], (), MANY, None)
        log.completed(at)
        assert len(known(journal, ahead)) == number + 1
        at = ahead
    assert len(journal.texts) < 4 * KEPT + 40


def test_no_text_is_larger_than_a_server_takes_in_a_statement() -> None:
    journal = MemoryJournal()
    log = FileLog(journal, "in")
    new = [Entry(f"{BASE}/{number:01000}", "10:1", "0" * 32) for number in range(20_000)]
    at = log.extended(log.at(""), BASE, new, (), MANY, None)
    assert max(map(len, journal.texts.values())) < 16 << 20  # max_allowed_packet of MariaDB
    assert len(FileLog(journal, "in").at(at).known) == 20_000


def test_a_driver_that_was_taken_over_takes_nothing_away_from_the_next() -> None:
    journal = MemoryJournal()
    old = FileLog(journal, "in")
    at = epoch(old, "", 1)
    left = FileLog(journal, "in")
    left.extended(left.at(at), BASE, [entry(2)], (), (), None)
    zombie = FileLog(journal, "in")
    zombie.at(at)  # it has listed what is there
    new = FileLog(journal, "in")
    end = new.extended(new.at(at), BASE, [entry(2)], (), (), None)
    zombie.extended(zombie.at(at), BASE, [entry(2)], (), (), None)
    zombie.completed(at)
    assert known(journal, end) == {"000001", "000002"}


def _removed(text: str) -> str | None:
    del text
    return None


def _cut(text: str) -> str:
    return text[: len(text) // 2]


def _edited(text: str) -> str:
    return text.replace("10:", "11:").replace('"before":"', '"before":"0')


@pytest.mark.parametrize(
    ("hurt", "code"), [(_removed, "file-log-missing"), (_cut, "file-log-damaged"), (_edited, "file-log-damaged")]
)
def test_a_log_of_which_anything_is_missing_cut_or_edited_is_refused_by_name(
    hurt: Callable[[str], str | None], code: str
) -> None:
    journal, at = MemoryJournal(), ""
    log = FileLog(journal, "in")
    for number in range(12):
        at = epoch(log, at, number)
    needed = FileLog(journal, "in").at(at).index.all | {at.partition(":")[2]}
    assert len(needed) > 3
    for name in needed:
        text = journal.texts.pop(name)
        if (damaged := hurt(text)) is not None:
            journal.texts[name] = damaged
        with raises(DataLoss, code, f"{name}"):
            FileLog(journal, "in").at(at)
        journal.texts[name] = text
    assert len(known(journal, at)) == 12


def test_a_range_that_does_not_go_on_from_its_start_is_refused() -> None:
    log = FileLog(MemoryJournal(), "in")
    one = epoch(log, "", 1)
    other = epoch(log, "", 2)
    with raises(DataLoss, "file-log-foreign"):
        log.new_of(one, other)


def test_positions_that_are_of_no_log_are_refused(tmp_path: Path) -> None:
    source = FileSource(str(tmp_path), format="json", schema="id long", name="in")
    for items in ({"#in/a.json": "10:1"}, {"#in/": 7}):
        with raises(CheckpointMismatch, "file-positions-foreign"):
            source.planner().end(Positions.of(items))
    with raises(DataLoss, "file-log-missing"):
        source.planner().end(Positions.of({"#in/": "1:abc"}))


def test_of_many_files_that_are_gone_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_log, "GONE_KEPT", 100)
    journal, at = MemoryJournal(), ""
    log = FileLog(journal, "in")
    there = {entry(number).path for number in range(5)}
    for first in range(0, 1000, 10):
        new = [entry(number) for number in range(first, first + 10)]
        at = log.extended(log.at(at), BASE, new, (), there, None)
        log.completed(at)
    found = {int(number) for number in known(journal, at)}
    assert found >= {*range(5), *range(900, 1000)}
    assert len(found) <= 5 + 2 * 100 + 10
    assert sum(len(json.loads(text).get("files", ())) for text in journal.texts.values()) < 3 * 300


def test_a_journal_in_a_store_keeps_texts_of_its_own_and_goes_with_its_pipeline(tmp_path: Path) -> None:
    store = CheckpointStore(f"sqlite:///{tmp_path}/store.db")
    mine, other = StoreJournal(store, "p", "in"), StoreJournal(store, "p", "other")
    mine.write({f"n{number}": str(number) for number in range(1200)})
    other.write({"n1": "x"})
    assert len(mine.names()) == 1200
    assert len(mine.read({f"n{number}" for number in range(2000)})) == 1200
    mine.remove([f"n{number}" for number in range(5, 3000)])
    assert mine.read(["n0", "n4", "n5"]) == {"n0": "0", "n4": "4"}
    assert other.read(["n1"]) == {"n1": "x"}
    mine.write({"n4": "4", "n9": "9"})  # as after a commit that nobody has acknowledged
    assert mine.names() == {"n0", "n1", "n2", "n3", "n4", "n9"}
    store.forget("p")
    assert not mine.names() and not other.names()
    store.close()


def test_an_index_says_all_that_it_needs() -> None:
    index = file_log.Index("", BASE, (("a", 1),), (("b", 2),))
    assert index.all == {"a", "b"}
    assert replace(index, ends=(("c", 3),)).all == {"a", "b", "c"}
