"""What `bench.compare` makes of its rounds: figures, verdicts, pictures and the page."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.compare.__main__ import CONTESTANTS, broken
from bench.compare.audit import Audit
from bench.compare.figures import Fast, Lived, percentile
from bench.compare.page import BEGINS, ENDS, Found, written
from bench.compare.rounds import Kills

EXACT = Audit(0, 0, 0)


def lived(audit: Audit = EXACT, killed_s: Sequence[float] = (), recovered_s: Sequence[float] = ()) -> Lived:
    seen = [(at / 100, at / 100 + 0.02 + at / 10_000) for at in range(100)]
    return Lived(seen, 5_000, audit, killed_s, recovered_s)


def test_the_figures_of_a_round() -> None:
    found = lived(killed_s=(0.5,), recovered_s=(0.25,))
    assert found.bytes_a_record == 50
    assert round(found.latency_ms(0.5), 3) == 24.9
    assert round(found.latency_ms(0.99), 3) == 29.8
    assert [(at_s, round(ms, 1)) for at_s, ms in found.slowest(0.5)] == [(0.0, 24.9), (0.5, 29.9)]
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0


def test_kills_are_planned_in_order_and_leave_time_to_recover() -> None:
    plan = Kills(worker_every_s=7, driver_every_s=20).plan(41)
    assert plan == [
        (7, "worker"), (14, "worker"), (20, "driver"), (21, "worker"), (28, "worker"), (35, "worker"),
    ]  # fmt: skip


@pytest.mark.parametrize("audit", [Audit(1, 0, 0), Audit(0, 1, 0), Audit(0, 0, 1)])
def test_what_promises_exactly_once_is_held_to_it(audit: Audit) -> None:
    (said,) = broken({"barriers": Found("exactly once", killed=lived(audit))})
    assert said.startswith("barriers promises exactly once") and str(audit) in said


def test_at_least_once_may_double_and_may_not_lose() -> None:
    assert not broken({"ack": Found("at least once", killed=lived(Audit(0, 3, 2)))})
    (said,) = broken({"barriers, at least once": Found("at least once", killed=lived(Audit(2, 0, 0)))})
    assert "has lost 2 records" in said


def test_ack_that_doubles_nothing_shows_that_the_kills_prove_nothing() -> None:
    (said,) = broken({"ack": Found("at least once", killed=lived(EXACT, killed_s=(1.0,)))})
    assert said == "ack has doubled nothing through 1 kills: they prove nothing"
    assert not broken({"ack": Found("at least once", fast=Fast(1.0, 1.0, EXACT))})


def test_the_page_keeps_all_but_what_is_between_its_marks(tmp_path: Path) -> None:
    page, images = tmp_path / "page.md", tmp_path / "images"
    page.write_text(f"before\n\n{BEGINS}\n\nold\n\n{ENDS}\n\nafter\n")
    found = {
        name: Found(promise, Fast(1e6, 2.0, EXACT), lived(), lived(EXACT, (0.5,), (0.25,)))
        for name, (promise, _) in CONTESTANTS.items()
    }
    files = written(page, images, "today", found, {"aligned": [(0.0, 5.0), (6.0, 9.0)], "unaligned": [(1.0, 0.1)]})
    text = page.read_text()
    assert text.startswith(f"before\n\n{BEGINS}\n\ntoday\n\n| |") and text.endswith(f"{ENDS}\n\nafter\n")
    assert "old" not in text
    assert "| barriers | exactly once | 1.000 | 2.00 | 25, 30 | 50 | 0.25, 0.25 | 0, 0, 0 |" in text
    pictures = [file for file in files if file.suffix == ".svg"]
    assert len(pictures) == 5
    for picture in pictures:
        texts = [*ET.parse(picture).getroot().itertext()]
        assert f"](images/{picture.name})" in text
        assert any("aligned" in each for each in texts) or set(CONTESTANTS) <= set(texts)


def test_a_page_without_marks_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n")
    with pytest.raises(ValueError, match="has no lines"):
        written(page, tmp_path / "images", "today", {}, {})
    assert page.read_text() == "text\n"
