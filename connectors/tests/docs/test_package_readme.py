"""The package's own page: README, whose links lead to the site."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


def test_readme_of_the_package_has_no_relative_link_and_each_leads_to_a_page_of_the_site() -> None:
    metadata: dict[str, Any] = {"urls": {"Documentation": "https://example.com/docs/"}}
    runpy.run_path(str(ROOT / "hatch_build.py"))["Readme"](str(ROOT), {}).update(metadata)
    links = re.findall(r"\]\(([^)\s]+)\)", metadata["readme"]["text"])
    assert len(links) > 15
    pages = {f"https://example.com/docs/{page.stem}.html" for page in (ROOT / "docs").glob("*.md")}
    pages |= {"https://example.com/docs/pages.html"}  # docs/README.md, whose name the site's first page takes
    assert [link for link in links if link.partition("#")[0] not in pages] == []
