"""What can be done to the daemon over its API: without its token, from pages of other sites, and with odd requests."""

from __future__ import annotations

import string
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
import schemathesis
from harness.daemon_stubs import Asking, daemon_of, whole
from harness.passwords import plain_url
from harness.stored_epochs import with_epochs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from onefold.clients.postgres import sessions
from onefold.core.waiting import Wait
from onefold.sinks import PostgresSink
from onefold.sinks.postgres import dead_letters
from onefold.sinks.postgres.dead_letters import DeadLetter, LetterOrigin
from onefold.sinks.postgres.naming import TargetName

pytestmark = pytest.mark.servers
TOKEN = "only-for-the-tests-of-this-page"
DESCRIBED = [status_code_conformance, content_type_conformance, response_schema_conformance]
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
SITES = ("http://evil.example", "https://127.0.0.1", "null", "http://127.0.0.1.evil.example", "file://", "")
HOSTS = ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8417", "[::2]", "0.0.0.0", "127.1", "")
TEXT = st.text(string.ascii_letters + string.digits + "-._~:/?#[]@!$&'()*+,;=%", max_size=30)
LETTERS = (
    "source_topic text, source_partition int, source_offset bigint, source_timestamp timestamptz, key bytea,"
    " value bytea, headers text, reason text, pipeline text, epoch bigint"
)
SHORT = settings(max_examples=40, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def database(postgres_server: Any) -> Iterator[str]:
    """One with dead letters of bytes that are no text, of times that Python has not, of half a character."""
    name = "test_daemon_api"
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        url = plain_url(postgres_server, name)
        with psycopg.connect(url) as there:
            there.execute(f"CREATE TABLE dead ({LETTERS}); CREATE SCHEMA onefold_sinks")
            for offset, at in enumerate(("now", "infinity", "-infinity", None)):
                values = (offset, at, b"\xff\x00", r'[{"key": "", "value": "/wA="}, {"key": "\ud83d", "value": null}]')
                there.execute("INSERT INTO dead VALUES ('orders', 0, %s, %s, NULL, %s, %s, 'odd', 'orders', 1)", values)
            there.commit()
            with closing(sessions.take(sessions.conninfo(url, "orders", 10))) as session:
                table = dead_letters.create(session, TargetName("onefold_sinks", "onefold_dead_letters"))
            odd = [DeadLetter("refused", None, None, '"\\u0000"'), DeadLetter("<\u2028>", "22003", "{}", "[]")]
            dead_letters.insert(there, table, LetterOrigin("orders", "rows", 1, 1, 0), odd)
        yield url
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, database: str) -> Iterator[Asking]:
    folder = tmp_path_factory.mktemp("daemon")
    with_epochs(f"sqlite:///{folder / 'store.db'}", 5).close()
    letters, rows = PostgresSink(database, "dead"), PostgresSink(database, "rows", on_error="dead_letter")
    with daemon_of(whole(folder, dead_letters=(letters,), sinks=(rows,)), token=TOKEN) as ask:
        runs(ask)
        yield ask


def runs(ask: Asking) -> None:
    """Wait until its pipeline runs, and start it if it does not."""
    wait = Wait(120)
    while (state := ask.get("/pipelines/orders")["state"]) != "running":
        assert wait.again(), state
        if state in ("stopped", "paused"):
            ask.post(f"/pipelines/orders/{'restart' if state == 'stopped' else 'resume'}")


@pytest.mark.attack(
    who="who may ask the daemon",
    does="sends whatever its description allows, and what it does not, to all of its paths",
    gets="answers that are as described, and no error of the daemon's own",
)
@pytest.mark.slow
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_request_is_answered_with_a_defect(daemon: Asking, mode: GenerationMode) -> None:
    described = schemathesis.openapi.from_dict(daemon.get("/openapi.json"))
    tried = set[str]()
    for found in described.get_all_operations():
        operation = found.ok()

        @SHORT
        @given(
            case=operation.as_strategy(generation_mode=mode), is_known=st.booleans(), end=st.sampled_from(["", "\0"])
        )
        def ask(case: Case, is_known: bool, end: str) -> None:
            if is_known and "name" in case.path_parameters:
                case.path_parameters["name"] = "orders"
            if isinstance(case.body, dict) and isinstance(case.body.get("topic"), str):
                case.body["topic"] += end  # which no database takes
            answer = case.call(base_url=daemon.url, headers={"Authorization": f"Bearer {TOKEN}"})
            assert answer.status_code < 500 or case.path == "/ready", answer.content
            case.validate_response(answer, checks=DESCRIBED)
            tried.add(case.path)

        ask()
    assert len(tried) >= (11 if mode is GenerationMode.POSITIVE else 6), tried
    runs(daemon)


def test_the_daemon_that_is_asked_has_dead_letters(daemon: Asking) -> None:
    letters = daemon.get("/pipelines/orders/dead-letters")["letters"]
    assert [letter["place"] and letter["place"]["offset"] for letter in letters] == [3, 2, 1, 0, None, None]
    assert letters[0]["value"] == "\\xff\x00" and letters[0]["sent"] is None
    assert letters[0]["headers"] == [{"key": "", "value": "\\xff\x00"}, {"key": r"\ud83d", "value": None}]


@pytest.mark.attack(
    who="a page of another site, in an operator's browser",
    does="sends requests that would change something, also under a name that it has resolve to 127.0.0.1",
    gets="401, and nothing is changed: no browser sends a key for the page of another site",
)
@SHORT
@given(
    action=st.sampled_from(["pause", "resume", "stop", "restart"]),
    header=st.one_of(
        st.fixed_dictionaries({}, optional={"Content_Type": st.sampled_from(["text/plain", "application/json"])}),
        st.builds(lambda site: {"LetterOrigin": site}, st.sampled_from(SITES) | TEXT),
        st.builds(lambda host: {"Host": host}, st.sampled_from(HOSTS) | TEXT),
    ),
)
def test_no_request_of_another_site_changes_anything(daemon: Asking, action: str, header: dict[str, str]) -> None:
    answer = daemon("POST", f"/pipelines/orders/{action}", Authorization="", **header)
    assert answer.status in (400, 401), "400: no HTTP at all"
    assert daemon.get("/pipelines/orders")["state"] == "running"
    assert not any(name.lower().startswith("access-control-") for name in answer.headers)


@pytest.mark.attack(
    who="who reaches the daemon and has not its token",
    does="asks for every path, by every method, with other tokens",
    gets="401, except from /health, which says only that the process answers, and the files of the page, which are"
    " the same everywhere",
)
@SHORT
@given(
    method=st.sampled_from(METHODS),
    path=st.sampled_from(["/", "/ready", "/metrics", "/openapi.json", "/docs", "/static/index.html", "/pipelines"])
    | st.sampled_from(["//health", "/health/", "/health/../metrics", "/health%2f..%2fmetrics", "/HEALTH", "/health;x"])
    | st.builds(lambda text: f"/{quote(text, safe='/%')}", TEXT),
    given_token=st.none()
    | st.builds(lambda kind, text: f"{kind} {text}", st.sampled_from(["Bearer", "Basic", "Onefold", ""]), TEXT),
)
def test_without_the_token_nothing_of_a_pipeline_is_answered(
    daemon: Asking, method: str, path: str, given_token: str | None
) -> None:
    answer = daemon(method, path, Authorization=given_token or "")
    if path.partition("?")[0] == "/health" and method in ("GET", "HEAD"):
        assert answer.body in (b'{"status":"ok"}', b"")
    elif path.partition("?")[0] != "/" and not path.startswith("/static/"):
        assert answer.status in (400, 401)
    assert b"orders" not in answer.body


def test_with_the_token_all_of_it_answers(daemon: Asking) -> None:
    told: Any = daemon.get("/openapi.json")
    for path in ("/health", "/ready", "/metrics", "/pipelines"):
        assert path in told["paths"]
        assert daemon("GET", path).status in (200, 503)
