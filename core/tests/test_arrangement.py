"""Which sinks an epoch's rows are written to in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from onefold.core import Sink
from onefold.core.writing.arrangement import AS_THEY_COME, Arrangement, needed_by, passes


@dataclass(frozen=True)
class Needing:
    """As much of a sink as a plan looks at."""

    key: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    stays: bool = False

    def partition_by(self) -> tuple[str, ...]:
        return self.key

    def order_by(self) -> tuple[str, ...]:
        return self.order

    def in_place(self) -> bool:
        return self.stays

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


ANY, PLACED = Needing(), Needing(stays=True)
A, AB, BA, C = Needing(("a",)), Needing(("a", "b")), Needing(("b", "a")), Needing(("c",))
A_BY_N, AB_BY_N, A_BY_NM, C_BY_M = (
    Needing(("a",), ("n",)),
    Needing(("a", "b"), ("n",)),
    Needing(("a",), ("n", "m")),
    Needing(("c",), ("m",)),
)


@pytest.mark.parametrize(
    ("sinks", "expected"),
    [
        ([ANY], [(AS_THEY_COME, [ANY])]),
        ([ANY, PLACED], [(Arrangement(in_place=True), [ANY, PLACED])]),
        ([ANY, A], [(Arrangement(("a",)), [ANY, A])]),
        ([AB, A, BA], [(Arrangement(("a",)), [AB, A, BA])]),
        ([AB, BA], [(Arrangement(("a", "b")), [AB, BA])]),
        ([A, C, ANY], [(Arrangement(("a",)), [A, ANY]), (Arrangement(("c",)), [C])]),
        ([PLACED, A], [(Arrangement(in_place=True), [PLACED]), (Arrangement(("a",)), [A])]),
        ([A, PLACED, ANY], [(Arrangement(("a",)), [A, ANY]), (Arrangement(in_place=True), [PLACED])]),
        ([A_BY_N, A], [(Arrangement(("a",), ("n",)), [A_BY_N, A])]),
        ([AB_BY_N, A], [(Arrangement(("a",), ("n",)), [AB_BY_N, A])]),
        ([A_BY_N, A_BY_NM], [(Arrangement(("a",), ("n", "m")), [A_BY_N, A_BY_NM])]),
        ([A_BY_N, C_BY_M], [(Arrangement(("a",), ("n",)), [A_BY_N]), (Arrangement(("c",), ("m",)), [C_BY_M])]),
        (
            [A_BY_N, C, Needing(("a",), ("m",))],
            [
                (Arrangement(("a",), ("n",)), [A_BY_N]),
                (Arrangement(("c",)), [C]),
                (Arrangement(("a",), ("m",)), [Needing(("a",), ("m",))]),
            ],
        ),
    ],
)
def test_sinks_share_a_pass_where_one_arrangement_suits_them_all(
    sinks: list[Needing], expected: list[tuple[Arrangement, list[Needing]]]
) -> None:
    made = passes(cast(list[Sink], sinks))
    assert [(one.arrangement, list(one.sinks)) for one in made] == expected


def test_a_sink_that_says_nothing_takes_rows_as_they_come() -> None:
    assert needed_by(cast(Sink, object())) == AS_THEY_COME
