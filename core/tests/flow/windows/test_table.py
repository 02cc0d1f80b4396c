"""Each case of windows and joins, and each mutant that they must notice, has its test."""

from __future__ import annotations

import re
from pathlib import Path

import join_cases
import pytest
import window_cases
from windows.test_mutants import MUTANTS

from onefold.engine.testing import mutants as engine

ROOT = Path(__file__).parents[4]
CASES = range(1, 83)
# Those that are neither an entry of `CASES` here and there, nor have their number in the name of a test.
NAMED = {
    13: "test_case_in_workers",
    19: "test_cases_19_to_21_days_are_as_long_as_the_clocks_of_their_zone_say",
    20: "test_cases_19_to_21_days_are_as_long_as_the_clocks_of_their_zone_say",
    21: "test_cases_19_to_21_days_are_as_long_as_the_clocks_of_their_zone_say",
}
NOTICED = {
    "the watermark from the first channel alone": "the watermark is of the first channel alone",
    "the watermark from the subtask's own partitions": "the watermark is of the worker's own partitions",
    "times of the next run joined into this one": "times of the next epoch count in this one",
    "rows judged by the watermark of their own epoch": "rows are judged by the watermark of their own epoch",
    "rows judged by that of another epoch after a restore": "clocks of windows are not restored",
    "silence by the wall clock": "silence goes by the machine's clock",
    "a silent partition that wakes takes it back": "a partition that wakes takes the watermark back",
    "fired before the barriers are aligned": "a channel is not held back",
    "closed slices not dropped": "closed slices are not dropped",
    "blocks restored twice, or of foreign key groups": "windows of a key group are restored twice",
    "a block lost in a merge of levels": "a block is lost where blocks are merged",
    "emission not restored": "how often windows have fired is not restored",
    "late rows emitted before the decision and again": "late rows come before the decision and again",
    "the end by the driver's word instead of the range's": "the end is where the driver has planned to, and not the"
    " epoch's",
    "the timer of silence forgotten after a restart": "the timer of silence is not told after a restart",
    "early results beyond their boundary": "early results have rows beyond their time",
    "a retraction of a firing that was never decided": "an early result that was never decided is taken back",
}


def names_of_tests() -> set[str]:
    files = [
        file for folder in ("core", "connectors", "integration-tests") for file in (ROOT / folder).rglob("test_*.py")
    ]
    return {name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)}


def test_each_of_the_82_cases_has_a_test() -> None:
    found = {number for name in names_of_tests() for number in map(int, re.findall(r"_case_(\d+)_", name))}
    ids = [str(each.id) for each in (*window_cases.CASES, *join_cases.CASES)]
    found |= {int(number[0]) for each in ids if (number := re.match(r"\d+", each))}
    assert set(NAMED.values()) <= names_of_tests()
    assert set(CASES) - found - NAMED.keys() == set()


@pytest.mark.parametrize("what", NOTICED)
def test_each_of_the_17_mutants_is_tried(what: str) -> None:
    assert len(NOTICED) == 17
    assert NOTICED[what] in {*MUTANTS, *engine.MUTANTS, *engine.OF_TIME, *engine.OF_ORDER}
