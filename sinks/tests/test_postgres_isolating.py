"""Bad rows are found among good ones, whatever the rows ask of one another."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from onefold.sinks.postgres import dead_letters
from onefold.sinks.postgres.dead_letters import PartRefused, TooManyRefused, isolate

BAD = -1


@dataclass(frozen=True)
class Rows:
    """(id, parent): a parent of None needs nothing, one of `BAD` is a row that no table takes."""

    rows: tuple[tuple[int, int | None], ...]

    def __len__(self) -> int:
        return len(self.rows)

    def slice(self, offset: int, length: int) -> Rows:
        return Rows(self.rows[offset : offset + length])


class Tree:
    """A table whose rows refer to others of it. A statement's references are looked at when it is at its end."""

    def __init__(self) -> None:
        self.ids: set[int] = set()
        self.attempts = 0

    def __call__(self, part: Rows) -> PartRefused | None:
        self.attempts += 1
        after = self.ids | {row for row, _ in part.rows}
        for _, parent in part.rows:
            if parent == BAD:
                return PartRefused("bad", "23514")
        for _, parent in part.rows:
            if parent is not None and parent not in after:
                return PartRefused("no parent", "23503")
        self.ids = after
        return None


def run(rows: Sequence[tuple[int, int | None]], refused_max: int) -> tuple[Tree, list[int]]:
    tree = Tree()
    taken, refused = isolate(
        Rows(tuple(rows)), tree, refused_max, lambda parts: Rows(tuple(row for part in parts for row in part.rows))
    )
    assert taken == len(tree.ids)
    assert taken + len(refused) == len(rows)
    return tree, sorted(row.rows[0][0] for row, _ in refused)


@pytest.mark.parametrize("seed", range(20))
def test_of_a_tree_in_any_order_what_is_refused_is_bad_or_hangs_on_what_is(seed: int) -> None:
    chance = random.Random(seed)
    parents: dict[int, int | None] = {0: None}
    for row in range(1, 300):
        parents[row] = BAD if chance.random() < 0.02 else chance.choice([None, chance.randrange(row), 10_000])
    lost: list[int] = []
    for row, parent in parents.items():  # parents come first here
        if parent in (BAD, 10_000) or parent in lost:
            lost.append(row)
    rows = list(parents.items())
    chance.shuffle(rows)
    assert run(rows, 300)[1] == lost


@pytest.mark.parametrize("bad", [(5000, BAD), (5000, 9999)])
def test_rows_that_come_before_their_parents_are_not_counted_among_the_bad_ones(bad: tuple[int, int]) -> None:
    chain = [(row, row + 1) for row in range(500)]
    _, refused = run([*chain, bad, (500, None)], 1)
    assert refused == [5000]


def test_where_all_rows_want_for_something_it_ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "WANTING_MAX", 50)
    tree = Tree()
    with pytest.raises(TooManyRefused, match="no parent"):
        isolate(Rows(tuple((row, 10_000) for row in range(4000))), tree, 5, lambda parts: parts[0])
    assert tree.attempts < 200


def test_a_ceiling_counts_what_is_refused_in_the_end() -> None:
    with pytest.raises(TooManyRefused, match="no parent"):
        run([(1, None), (2, 99), (3, 99), (4, 99)], 2)
    assert run([(1, None), (2, 99), (3, 99), (4, 99)], 3)[1] == [2, 3, 4]
