"""A schema registry as its clients see it: the few calls of its HTTP API that serializers and readers make."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

NOT_FOUND = {"subject": 40401, "version": 40402, "schema": 40403}


class SchemaRegistry:
    """On a port of its own. Schemas get ids from 1 on, in the order in which they come.

    `how` answers in its place, with a handler that has its `wfile`.
    """

    def __init__(self, how: Callable[[BaseHTTPRequestHandler], None] | None = None) -> None:
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.asked: list[str] = []
        self.answer_with: int | None = None  # a status instead of answers
        self.refused: set[str] = set()  # paths that we may not read
        self.how = how
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"registry": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def register(self, subject: str, schema: dict[str, Any]) -> int:
        with self._lock:
            if schema not in self.schemas:
                self.schemas.append(schema)
            number = self.schemas.index(schema) + 1
            if number not in self.subjects.setdefault(subject, []):
                self.subjects[subject].append(number)
            return number

    def answer(self, method: str, path: list[str], body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        match method, path:
            case "GET", ["schemas", "ids", number]:
                if int(number) > len(self.schemas):
                    return _missing("schema")
                return 200, self.schemas[int(number) - 1]
            case "POST", ["subjects", subject, "versions"]:
                return 200, {"id": self.register(subject, _bare(body))}
            case "POST", ["subjects", subject]:
                for version, number in enumerate(self.subjects.get(subject, []), 1):
                    if self.schemas[number - 1] == _bare(body):
                        return 200, self._version(subject, version)
                return _missing("schema")
            case "GET", ["subjects", subject, "versions", version]:
                if subject not in self.subjects:
                    return _missing("subject")
                versions = len(self.subjects[subject])
                return 200, self._version(subject, versions if version == "latest" else int(version))
        return 404, {"error_code": 404, "message": f"no such call: {method} {'/'.join(path)}"}

    def _version(self, subject: str, version: int) -> dict[str, Any]:
        number = self.subjects[subject][version - 1]
        return {"subject": subject, "version": version, "id": number, **self.schemas[number - 1]}


class _Handler(BaseHTTPRequestHandler):
    registry: SchemaRegistry

    def _serve(self) -> None:
        registry = self.registry
        registry.asked.append(f"{self.command} {self.path}")
        if registry.how is not None:
            with suppress(OSError):  # the client has heard enough
                registry.how(self)
            return
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        place = self.path.partition("?")[0]
        told = 403 if place in registry.refused else registry.answer_with
        if told is None:
            status, said = registry.answer(self.command, place.strip("/").split("/"), body)
        else:
            status, said = told, {"error_code": told, "message": "as told"}
        text = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = _serve  # noqa: N815 (the names are http.server's)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a test says what went wrong."""


def _bare(body: dict[str, Any]) -> dict[str, Any]:
    return {name: body[name] for name in ("schema", "schemaType", "references") if body.get(name)}


def _missing(what: str) -> tuple[int, dict[str, Any]]:
    return 404, {"error_code": NOT_FOUND[what], "message": f"{what} not found"}
