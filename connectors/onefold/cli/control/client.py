"""Asks the API of a running daemon."""

from __future__ import annotations

import json
import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from onefold.core import ConfigError, OnefoldError, Retriable
from onefold.daemon.api.access import HEADER, read_token

__all__ = ["Client"]

_WITHIN_S = 30.0


class Client:
    """Raises what the daemon answers with; Retriable where there is none, or it has no answer now."""

    def __init__(self, url: str, token_file: Path | None = None, ca: Path | None = None) -> None:
        parts = urlsplit(url)
        try:
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError:
            self._host, self._port = "", None
        if parts.scheme not in ("http", "https") or not self._host or parts.username is not None:
            raise ConfigError("option-value", "--url: http://HOST:PORT or https://HOST:PORT is wanted, without a user")
        self._url, self._base = url, parts.path.rstrip("/")
        self._tls = _context(ca) if parts.scheme == "https" else None
        token = None if token_file is None else read_token(token_file)
        self._headers = {HEADER: "1"} | ({} if token is None else {"Authorization": f"Bearer {token}"})

    def get(self, *path: str, **query: object) -> Any:
        wanted = {name: value for name, value in query.items() if value is not None}
        return self._ask("GET", path, f"?{urlencode(wanted)}" if wanted else "")

    def post(self, *path: str) -> Any:
        return self._ask("POST", path)

    def _ask(self, method: str, path: tuple[str, ...], query: str = "") -> Any:
        target = f"{self._base}/{'/'.join(quote(part, safe='') for part in path)}{query}"
        try:
            connection = self._connection()
            try:
                connection.request(method, target, headers=self._headers)
                answer = connection.getresponse()
                status, body = answer.status, answer.read()
            finally:
                connection.close()
        except ssl.SSLCertVerificationError as error:
            raise ConfigError(
                "daemon-not-trusted",
                f"the certificate of {self._url} is not one that we trust: {error.verify_message}. Name the"
                " certificate of who has signed it: --ca",
            ) from error
        except (OSError, HTTPException) as error:
            raise Retriable(
                "daemon-unreachable",
                f"no daemon answers at {self._url}: {error or type(error).__name__}. Start it with `onefold run`, or"
                " say where it is: --url, or ONEFOLD_URL",
            ) from error
        return self._read(status, body)

    def _connection(self) -> HTTPConnection:
        if self._tls is None:
            return HTTPConnection(self._host, self._port, timeout=_WITHIN_S)
        return HTTPSConnection(self._host, self._port, timeout=_WITHIN_S, context=self._tls)

    def _read(self, status: int, body: bytes) -> Any:
        try:
            found = json.loads(body)
        except ValueError:
            found = None
        if 200 <= status < 300 and found is not None:
            return found
        if not isinstance(found, dict) or not {"code", "message"} <= found.keys():
            raise Retriable("daemon-answer-unreadable", f"{self._url} is no daemon of onefold: it answered {status}")
        kind: type[OnefoldError] = Retriable if status >= 500 else ConfigError
        raise kind(str(found["code"]), str(found["message"]))


def _context(ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ValueError) as error:
        raise ConfigError("file-unreadable", f"--ca {ca} has no certificate that can be read: {error}") from error
