"""Pipelines whose hosts are stubs, and a daemon of them: all of it is real but the hosts and what they would write."""

from __future__ import annotations

import json
import threading
import time
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
from onefold.daemon.access.token import make_own_token
from onefold.daemon.api.listening import Listening
from onefold.daemon.api.serving import answering
from onefold.daemon.control import Controls
from onefold.daemon.hosting.epoch_times import EpochTimes
from onefold.daemon.hosting.messages import Failure, LogLine, Recovered, Status, Totals
from onefold.daemon.hosting.traffic_rates import TrafficRates
from onefold.daemon.pipeline_run import Run
from onefold.pipeline import Engine, Restart
from onefold.sources import KafkaSource
from onefold.store.epoch_figures import GaveUp, RunningEpoch

DOWN = Retriable("test", "the server is down")
AT_ONCE = Restart(strategy="fixed_delay", delay_s=0.01)
NEVER = Restart(strategy="none")


class Query:
    """What runs in a host, without one. It runs until it is drained, or `over` is set; `raises` are what its runs end
    with."""

    waiting_for: OnefoldError | None = None
    running: RunningEpoch | None = None
    gave_up: GaveUp | None = None

    def __init__(self, *raises: Exception) -> None:
        self.raises = list(raises)
        self.starts = 0
        self.is_paused = False
        self.started_at_s: float | None = None
        self.recovered: Recovered | None = None
        self.totals = Totals()
        self.memory_bytes: int | None = 100_000_000
        self.traffic, self.epochs = TrafficRates(), EpochTimes()
        self.lines: list[LogLine] = []
        self.over = threading.Event()

    @property
    def status(self) -> Status:
        waited = None if self.waiting_for is None else Failure.of(self.waiting_for)
        return Status(
            started_at_s=self.started_at_s,
            recovered=self.recovered,
            waiting_for=waited,
            running=self.running,
            gave_up=self.gave_up,
        )

    def run(self, on_start: Callable[[], None], is_paused: bool) -> None:
        self.starts += 1
        self.is_paused, self.started_at_s = is_paused, None
        self.begin()
        self.started_at_s = time.time()
        on_start()
        self.wait()

    def begin(self) -> None:
        """Start; it may raise."""

    def wait(self) -> None:
        if self.raises:
            raise self.raises.pop(0)
        assert self.over.wait(60)

    def drain(self) -> None:
        self.over.set()

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    def close(self) -> None:
        pass


def pipeline_of(
    query: Query | Callable[[], Query],
    restart: Restart = AT_ONCE,
    name: str = "orders",
    stop_within_s: float = 5.0,
    **more: Any,
) -> Any:
    """A pipeline with this query, or with a new one for each run."""
    queries: list[Query] = []

    def host() -> Query:
        queries.append(query if isinstance(query, Query) else query())
        return queries[-1]

    given = {
        "restart": restart,
        "stop_within_s": stop_within_s,
        "host": host,
        "queries": queries,
        "named": "",
        "checkpoint": "",
        "check_positions": lambda: None,
        **more,
    }
    return SimpleNamespace(name=name, **given)


def hosted(pipeline: Any) -> Query:
    """What runs it: for `Control` and `Controls`."""
    found: Query = pipeline.host()
    return found


def run_of(query: Query, *options: Any, **more: Any) -> Run:
    return Run(pipeline_of(query, *options, **more), query)


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
    """A daemon of these, which answers at a port of its own; without `begins` it starts none of them."""
    controls = Controls(pipelines, hosted)
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
                control.begin()
        looking.start()
        try:
            yield Asking(answers.url, listening.token)
        finally:
            over.set()
            looking.join(10)
            for run in controls.close():
                run.stop(10)


def whole(
    directory: Path,
    name: str = "orders",
    on_error: Literal["fail", "dead_letter"] = "fail",
    named: Path | None = None,
    **more: Any,
) -> Any:
    """A pipeline with all that the API looks at: a SQLite store, a source whose broker is down, a sink."""
    source = KafkaSource("orders", bootstrap_servers="127.0.0.1:1", format="raw", timeout_s=1, on_error=on_error)
    return pipeline_of(
        Query,
        name=name,
        named="" if named is None else str(named),
        store_url=f"sqlite:///{directory / 'store.db'}",
        everyone=(HoldingSink(),),
        flow=SimpleNamespace(sources=lambda: (source,)),
        check_state=lambda: None,
        **{"topics": [source], "dead_letters": (), "sinks": (), "runtime": Engine(), **more},
    )
