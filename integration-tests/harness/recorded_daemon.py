"""Answers of the daemon's API, in the API's own shape, served with the real status page."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from onefold.daemon.access.guard import Guard
from onefold.daemon.access.proof import Nonces, page_link
from onefold.daemon.api.app import page_routes
from onefold.daemon.api.graphs import ElementModel
from onefold.flow.drawing.svg import Box, Connector, drawn

__all__ = ["NOW", "RecordedDaemon", "acknowledged", "at", "epoch", "letter", "pipeline"]

NOW = datetime(2026, 11, 23, 18, 0, tzinfo=UTC)
Json = dict[str, Any]


def at(seconds_ago: float) -> str:
    return (NOW - timedelta(seconds=seconds_ago)).isoformat().replace("+00:00", "Z")


LOG = [
    {"at": at(280), "level": "info", "message": "pipeline 'orders': generation 3. Epochs decided before: 1 finished"},
    {"at": at(279), "level": "info", "message": "sink 'orders': two_phase, two-phase"},
    {"at": at(95), "level": "warning", "message": "pipeline 'orders' waits for Postgres at db.example:5432"},
    {"at": at(42), "level": "error", "message": "Traceback (most recent call last):\n  ...\nValueError: no amount"},
]
DEFINITION = [
    'runtime = "engine"',
    'sources[0].kind = "kafka"',
    'sources[0].client_config."sasl.password" = "***"',
    'sinks[0].kind = "postgres"',
    'sinks[0].url = "postgresql://db.example/shop"',
]


def epoch(number: int, state: str = "complete", last: int = 60, sinks: tuple[str, ...] = ("orders", "audit")) -> Json:
    """Epoch `number` of a pipeline whose newest is `last`: one each ten seconds, of some ten thousand rows."""
    opened_s, is_complete = (last - number) * 10 + 4.0, state == "complete"
    rows = 9_000 + number * 37 % 11 * 430
    ends = {f"orders/{partition}": number * 2_500 + partition * 11 for partition in range(4)}
    return {
        "epoch": number,
        "kind": "rows",
        "why": None,
        "generation": 3,
        "state": state,
        "opened_at": at(opened_s),
        "decided_at": at(opened_s - 1.2) if is_complete else None,
        "completed_at": at(opened_s - 1.5) if is_complete else None,
        "duration_s": 1.5 if is_complete else None,
        "commit_s": 0.3 if is_complete else None,
        "steps": {"wait_s": 8.5, "open_s": 0.01, "run_s": 0.9, "prepare_s": 0.21, "decide_s": 0.08, "commit_s": 0.3}
        if is_complete and number > 40
        else None,
        "rows": rows if state != "open" else 0,
        "bytes": rows * 120 if state != "open" else 0,
        "state_bytes": None,
        "stored_bytes": 0,
        "range": {"start": {name: end - 2_500 for name, end in ends.items()}, "end": ends},
        "sinks": [
            {
                "name": name,
                "rows": rows,
                "bytes": rows * 120,
                "state": "acknowledged" if is_complete else "pending",
                "acknowledged_at": at(opened_s - 1.5) if is_complete else None,
            }
            for name in sinks
        ],
        "query_id": "8f0a",
        "batch_id": number,
        "manifest": [
            {
                "sink": name,
                "kind": "two-phase",
                "handle": f"onefold/{name}/3/{number}/{task:04d}",
                "generation": 3,
                "rows": rows // 4,
                "bytes": rows * 30,
            }
            for name in sinks
            for task in range(4)
            if state != "open"
        ],
        "operators": [],
        "error": None,
    }


def acknowledged(*names: str, missing: tuple[int, ...] = (), state_bytes: int = 0) -> Json:
    """The acknowledgements of operators that run together in three workers, but for those that are missing."""
    done = {"at": at(1), "aligned_s": 0.25, "held_bytes": 1_500, "prepared_s": 0.5, "state_bytes": state_bytes}
    subtasks = [
        None if worker in missing else {**done, "aligned_s": 0.25 * worker, "stored_bytes": state_bytes // 10}
        for worker in range(3)
    ]
    return {"names": [*names], "subtasks": subtasks}


def letter(offset: int, **more: Any) -> Json:
    return {
        "sink": "unreadable",
        "epoch": 58,
        "at": at(24),
        "reason": "field 'amount' is missing, and the schema says that it is not null",
        "place": {"topic": "orders", "partition": 2, "offset": offset},
        "position": None,
        "key": "account-17",
        "value": '{"id": 4711, "account": 17}',
        "value_bytes": 27,
        "headers": [{"key": "trace", "value": "00-4bf9"}],
        "sent": None,
        "can_send": True,
        **more,
    }


def pipeline(name: str = "orders", state: str = "running", **more: Any) -> Json:
    actions = {
        "running": ["pause", "restart", "stop"],
        "paused": ["resume", "restart", "stop"],
        "waiting": ["restart", "stop"],
    }
    return {
        "name": name,
        "state": state,
        "generation": 3,
        "epoch": 60,
        "restarts": 1,
        "actions": actions.get(state, []),
        "error": None,
        "next_start_at": None,
        "source": {"kind": "kafka", "name": "orders"},
        "positions": {f"orders/{partition}": 150_000 + partition * 11 for partition in range(4)},
        "lag": {f"orders/{partition}": 310 for partition in range(4)},
        "behind": {"record": 1_240},
        "edges": [],
        "operators": [],
        "sinks": [
            {
                "name": "orders",
                "kind": "postgres",
                "mode": "two_phase",
                "promise": "exactly-once",
                "atomic": False,
                "reason": "readers see an epoch task by task, each task's rows at once",
            },
            {
                "name": "audit",
                "kind": "kafka",
                "mode": "transactional",
                "promise": "exactly-once",
                "atomic": False,
                "reason": "readers read with isolation.level=read_committed",
            },
        ],
        "running": None,
        "checkpoint": "",
        "spark_state": None,
        "counts": {"triggered": 64, "in_progress": 1, "completed": 60, "failed": 3, "restored": 2},
        "latest": {
            "completed": epoch(60),
            "failed": {"epoch": 31, "state": "given_up", "at": at(290), "error": None},
            "savepoint": {"name": "before-upgrade", "epoch": 28, "at": at(300)},
            "restore": {"generation": 3, "at": at(280), "epochs_finished": 1},
            "savepoint_restored": None,
        },
        "in_doubt": 0,
        "oldest_prepared_s": None,
        "dead_letters": 3,
        "takes_dead_letters": True,
        "started_at": at(3_700),
        "progress_at": at(2),
        "store_error": None,
        **more,
    }


def lags() -> list[Json]:
    """Of the last ten minutes: it goes up and down."""
    points = ((600 - 5 * step, 1_240 + (step * 7919) % 500) for step in range(120))
    return [{"at": at(ago_s), "behind": {"record": records}} for ago_s, records in points]


def picture(*between: str) -> Json:
    """The graph of a pipeline, with what flows in it; `between` source and sinks there are these operators."""
    names = ["orders", *(between or ["valid", "totals"]), "shop", "audit"]
    kinds = ["source", *(["function", "state"] * len(names))[: len(names) - 3], "sink", "sink"]
    boxes = [
        Box(number, name, f"does what {name} does", ("id int64", "n int64"), kind, (f"{7 * number % 90:3}% busy",))
        for number, (name, kind) in enumerate(zip(names, kinds, strict=True))
    ]
    boxes[1] = replace(boxes[1], figures=("  7% busy,  41% backpressured",))
    boxes[2] = replace(boxes[2], figures=(" 93% busy", "1,204,331 entries, 88.1 MB"))
    last = len(names) - 1
    ways = [Connector(at, at + 1, f"{12_000 - at:,} rows/s, 1.2 MB/s", at % 3 == 1) for at in range(last - 1)]
    ways.append(Connector(0, last, "side bad, 0 rows/s, 0.0 MB/s", False))
    return ElementModel.of(drawn("", boxes, ways, (), is_styled=False)).model_dump()


class RecordedDaemon:
    """Serves what its attributes hold: a test changes them. `posts` are the requests that would change something,
    `gets` the paths of the others."""

    def __init__(self) -> None:
        self.token = "a token of these tests"
        self.nonces = Nonces()
        self.pipelines = {"orders": pipeline()}
        self.epochs = {"orders": [epoch(number) for number in range(60, 0, -1)]}
        self.lags: dict[str, list[Json]] = {"orders": lags()}
        self.graphs: dict[str, Json] = {"orders": picture()}
        self.logs: dict[str, list[Json]] = {"orders": LOG}
        self.definitions: dict[str, list[str]] = {"orders": DEFINITION}
        self.operators: list[Json] = []  # that can be asked for their state
        self.letters: dict[str, Any] = {"letters": [], "elsewhere": []}
        self.reasons: list[dict[str, Any]] = []
        self.answers: dict[str, tuple[int, Json]] = {}  # by path, instead of the usual one
        self.posts: list[tuple[str, Json, dict[str, str]]] = []
        self.gets: list[str] = []
        self.queries: list[dict[str, str]] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        app = Starlette(routes=[*page_routes(), Route("/pipelines{rest:path}", self._answer, methods=["GET", "POST"])])
        guarded = Guard(app, self.token, self.nonces)
        self._server = uvicorn.Server(uvicorn.Config(guarded, log_level="error", lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)

    @property
    def page(self) -> str:
        """A link that logs a browser in."""
        return page_link(self.url, self.token, self.nonces.new())

    def stop(self) -> None:
        """Nothing listens on the port any more."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = self._server.force_exit = True
            self._thread.join(10)
            self._server = None
        self._socket.close()

    def start_again(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", int(self.url.rpartition(":")[2])))
        self.start()

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        if request.method == "POST":
            body = await request.body()
            self.posts.append((path, await request.json() if body else {}, dict(request.headers)))
        else:
            self.gets.append(path)
            self.queries.append(dict(request.query_params))
        if path in self.answers:
            status, answer = self.answers[path]
            return JSONResponse(answer, status)
        match [unquote(part) for part in request.scope["raw_path"].decode().split("/")[2:]]:
            case []:
                return JSONResponse(list(self.pipelines.values()))
            case [_, "dead-letters", "reasons"]:
                return JSONResponse(self.reasons)
            case [_, "dead-letters", *sent]:
                return JSONResponse(self.letters if not sent else {"state": "sent", "at": at(0), "offset": 150_100})
            case [name, "lags"]:
                return JSONResponse({"points": self.lags.get(name, [])})
            case [name, "log"]:
                return JSONResponse({"lines": self.logs.get(name, [])})
            case [name, "definition"]:
                return JSONResponse({"lines": self.definitions.get(name, [])})
            case [name, "graph"]:
                return JSONResponse({"svg": self.graphs.get(name)})
            case [_, "state"]:
                return JSONResponse(self.operators)
            case [name, "epochs"]:
                before = int(request.query_params.get("before", 2**62))
                found = [one for one in self.epochs.get(name, []) if one["epoch"] < before]
                return JSONResponse({"epochs": found[: int(request.query_params.get("limit", 50))]})
            case [name, "epochs", number]:
                return JSONResponse(next(one for one in self.epochs[name] if one["epoch"] == int(number)))
            case [name, *_]:
                return JSONResponse(self.pipelines[name])
        return JSONResponse({"code": "path-unknown", "message": path}, 404)
