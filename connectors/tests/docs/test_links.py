"""README and docs: every link leads to a file and a heading that is there, and the index names every page."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
ELSEWHERE = ("http:", "https:", "mailto:")


def anchors(page: Path) -> set[str]:
    """What links may name behind `#`: the headings, as forges and the site make anchors of them."""
    seen: Counter[str] = Counter()
    for heading in re.findall(r"^#{1,6} (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE):
        plain = re.sub(r"[^\w\s-]", "", LINK.sub("", heading).lower())
        seen[re.sub(r"\s", "-", plain.strip())] += 1
    return {name if not again else f"{name}-{again}" for name, times in seen.items() for again in range(times)}


def links(page: Path) -> list[str]:
    return [link for link in LINK.findall(FENCE.sub("", page.read_text())) if not link.startswith(ELSEWHERE)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading_that_is_there(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}: {target.name} has no such heading"


def test_the_index_names_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    named = {link.partition("#")[0] for link in links(index)}
    assert {page.name for page in PAGES if page.parent == index.parent} - named == {index.name}


def test_the_site_has_every_page_in_its_navigation() -> None:
    settings = (ROOT / "mkdocs.yml").read_text()
    assert [page.name for page in PAGES[1:] if page.name != "README.md" and f" {page.name}\n" not in settings] == []
