"""Pipelines whose queries are stubs, and a daemon of them: all of it is real but Spark and what Spark would write."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPMessage
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from urllib.parse import urlsplit

from onefold.core import Committable, OnefoldError, Retriable, SinkKind
from onefold.core.contract import Guarantee
from onefold.core.findings import Held
from onefold.core.protocol.epoch import Started
from onefold.core.writing.bad_records import Tally
from onefold.daemon.access.token import make_own_token
from onefold.daemon.api.listening import Listening
from onefold.daemon.api.serving import answering
from onefold.daemon.control import Controls
from onefold.daemon.pipeline_run import Run
from onefold.pipeline import Restart, Spark
from onefold.sources import KafkaSource

DOWN = Retriable("test", "the server is down")
AT_ONCE = Restart(strategy="fixed_delay", delay_s=0.01)
NEVER = Restart(strategy="none")
SPARK: Any = SimpleNamespace()  # nobody asks it anything


class Query:
    """A query and its writer. It runs until it is drained, or `over` is set; `raises` are what its runs end with."""

    is_paused = ends = False
    waiting_for: OnefoldError | None = None

    def __init__(self, *raises: Exception, closing: Exception | None = None) -> None:
        self.raises, self.closing = list(raises), closing
        self.starts = 0
        self.started: Started | None = None
        self.bad_records = Tally()
        self.over = threading.Event()

    def await_termination(self, _query: object) -> None:
        if self.raises:
            raise self.raises.pop(0)
        assert self.over.wait(60)

    def drain(self, _query: object, _within_s: float) -> bool:
        self.over.set()
        return True

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    def close(self) -> None:
        if self.closing is not None:
            raise self.closing


def pipeline_of(
    query: Query | Callable[[], Query],
    restart: Restart = AT_ONCE,
    start: Callable[[], None] = lambda: None,
    ends: bool = False,
    name: str = "orders",
    stop_within_s: float = 5.0,
    **more: Any,
) -> Any:
    """A pipeline with this query, or with a new one for each run."""
    queries: list[Query] = []

    def writer(**_: object) -> Query:
        queries.append(query if isinstance(query, Query) else query())
        return queries[-1]

    def started(*_: object) -> object:
        queries[-1].starts += 1
        queries[-1].ends = ends
        start()
        return object()

    return SimpleNamespace(
        name=name,
        restart=restart,
        spark=Spark(),
        stop_within_s=stop_within_s,
        writer=writer,
        start=started,
        queries=queries,
        **more,
    )


def run_of(query: Query, *options: Any, spark: Any = None, **more: Any) -> Run:
    return Run(pipeline_of(query, *options, **more), spark)


class HoldingSink:
    """A sink with one prepared transaction."""

    name = "rows"

    def guarantee(self) -> Guarantee:
        return Guarantee("two_phase", SinkKind.TWO_PHASE, atomic_epoch=False, conditions=("it rains",), prepared_s=60.0)

    def held(self, _pipeline: str) -> list[Held]:
        return [Held(Committable(self.name, SinkKind.TWO_PHASE, "gid", 1, 2, 0), 12.0, "")]


@dataclass
class Answer:
    status: int
    headers: HTTPMessage
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Asking:
    """Sends requests to a daemon at this URL, with its token unless they say otherwise."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        self._bearer = f"Bearer {token or make_own_token()}"

    def __call__(self, method: str, path: str, **headers: str) -> Answer:
        connection = HTTPConnection(urlsplit(self.url).netloc, timeout=30)
        try:
            named = {"Authorization": self._bearer}
            named |= {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, headers=named)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        return self("GET", path).json()

    def post(self, path: str) -> Answer:
        return self("POST", path)


@contextmanager
def daemon_of(
    *pipelines: Any, token: str | None = None, begins: bool = True, listening: Listening | None = None
) -> Iterator[Asking]:
    """A daemon of these, which answers at a port of its own; without `begins` its Spark is never up."""
    controls = Controls(pipelines)
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.02):
            for control in controls:
                control.look()

    looking = threading.Thread(target=look, daemon=True)
    listening = listening or Listening("127.0.0.1", 0, token or make_own_token())
    with answering(controls, listening) as answers:
        if begins:
            for control in controls:
                control.begin(SPARK)
        looking.start()
        try:
            yield Asking(answers.url, listening.token)
        finally:
            over.set()
            looking.join(10)
            for run in controls.close():
                run.stop(10)


def whole(directory: Path, name: str = "orders", on_error: Literal["fail", "dead_letter"] = "fail", **more: Any) -> Any:
    """A pipeline with all that the API looks at: a SQLite store, a source whose broker is down, a sink."""
    source = KafkaSource("orders", bootstrap_servers="127.0.0.1:1", format="raw", timeout_s=1, on_error=on_error)
    return pipeline_of(
        Query,
        name=name,
        store_url=f"sqlite:///{directory / 'store.db'}",
        everyone=(HoldingSink(),),
        flow=SimpleNamespace(sources=lambda: (source,)),
        **{"topics": [source], "dead_letters": (), "sinks": (), **more},
    )
