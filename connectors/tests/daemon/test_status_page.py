"""How the status page is served: its own files and nothing else, under a policy that allows nothing else either."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from harness.recorded_daemon import epoch, pipeline
from prometheus_client import CollectorRegistry

from onefold.daemon.access.guard import Guard
from onefold.daemon.access.proof import Nonces
from onefold.daemon.api.app import PAGE, make_app
from onefold.daemon.api.epochs import EpochDetail
from onefold.daemon.api.pipelines import PipelineModel


def get(path: str) -> tuple[int, dict[str, str], bytes]:
    sent: list[Any] = []
    asked: list[bool] = []

    async def receive() -> dict[str, Any]:
        if asked:
            await asyncio.Event().wait()  # the client stays
        asked.append(True)
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1")],
        "scheme": "http",
    }
    scope |= {"server": ("127.0.0.1", 8417), "root_path": "", "http_version": "1.1", "raw_path": path.encode()}
    asyncio.run(Guard(make_app([], CollectorRegistry()), "a token", Nonces())(scope, receive, send))
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(part.get("body", b"") for part in sent[1:])


def test_the_page_and_its_files_are_served_with_their_types() -> None:
    status, headers, content = get("/")
    assert status == 200
    assert headers["content-type"] == "text/html; charset=utf-8"
    for name in re.findall(r'(?:href|src)="(/[^"#]+)"', content.decode()):
        status, headers, content = get(name)
        assert (status, content) == (200, (PAGE / name.removeprefix("/static/")).read_bytes())
        assert headers["x-content-type-options"] == "nosniff"


def test_a_browser_runs_only_what_comes_from_the_daemons_files() -> None:
    policy = get("/")[1]["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    page = (PAGE / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=|<style", page)


def test_nothing_is_fetched_from_elsewhere() -> None:
    named = [url for path in PAGE.rglob("*.*") for url in re.findall(r"https?://[^\s\"')]+", path.read_text())]
    assert set(named) == {"http://www.w3.org/2000/svg"}  # the name of a namespace


def test_no_text_becomes_html() -> None:
    scripts = "".join(path.read_text() for path in PAGE.rglob("*.js"))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|DOMParser", scripts)


@pytest.mark.parametrize("name", ["../status_page.py", "..%2fstatus_page.py", "js", "js/", "/etc/passwd", "x.js", ""])
def test_no_other_file_is_served(name: str) -> None:
    assert get(f"/static/{name}")[0] == 404


def test_the_answers_that_the_page_is_tested_with_have_the_shape_of_the_apis() -> None:
    recorded = pipeline()
    EpochDetail.model_validate(recorded["latest"].pop("completed"))
    PipelineModel.model_validate(recorded | {"latest": recorded["latest"] | {"completed": None}})
    EpochDetail.model_validate(epoch(61, "open", last=61))
