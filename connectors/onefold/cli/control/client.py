"""Asks the API of a running daemon."""

from __future__ import annotations

import json
import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from onefold.core import ConfigError, OnefoldError, Retriable
from onefold.daemon.api.access import HEADER, is_loopback, read_token

__all__ = ["Client"]

_WITHIN_S = 30.0


class Client:
    """Raises what the daemon answers with; Retriable where there is none, or it has no answer now.

    A token goes over the network by TLS alone, or where `insecure` says that something else encrypts.
    """

    def __init__(
        self, url: str, token_file: Path | None = None, ca: Path | None = None, insecure: bool = False
    ) -> None:
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname or "", parts.port
            self._host.encode("idna")
            is_usable = parts.scheme in ("http", "https") and self._host and parts.username is None and url.isascii()
        except ValueError:
            is_usable = False
        if not is_usable:
            raise ConfigError("option-value", "--url: http://HOST:PORT or https://HOST:PORT is wanted, without a user")
        self._url, self._base = url, parts.path.rstrip("/")
        self._tls = _context(ca) if parts.scheme == "https" else None
        token = None if token_file is None else read_token(token_file)
        if token is not None and self._tls is None and not insecure and not is_loopback(self._host):
            raise ConfigError(
                "token-in-clear",
                f"the token would cross the network to {self._host} in clear: ask https://, or, where something else"
                " encrypts, --insecure",
            )
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
                f"no daemon answers at {self._url}: {str(error) or type(error).__name__}. Start it with `onefold run`,"
                f" or say where it is: --url, or ONEFOLD_URL{self._hint(error)}",
            ) from error
        return self._read(path, status, body)

    def _hint(self, error: Exception) -> str:
        """A server of the other scheme takes the connection, and understands nothing."""
        if self._tls is None and isinstance(error, HTTPException | ConnectionResetError | BrokenPipeError):
            return ". Something listens there: the URL of a daemon with a certificate (--tls-cert) begins with https://"
        if isinstance(error, ssl.SSLError):
            return ". Something listens there: the URL of a daemon without a certificate begins with http://"
        return ""

    def _connection(self) -> HTTPConnection:
        if self._tls is None:
            return HTTPConnection(self._host, self._port, timeout=_WITHIN_S)
        return HTTPSConnection(self._host, self._port, timeout=_WITHIN_S, context=self._tls)

    def _read(self, path: tuple[str, ...], status: int, body: bytes) -> Any:
        try:
            found = json.loads(body)
        except ValueError:
            found = None
        if 200 <= status < 300 and _is_of_daemon(path, found):
            return found
        if 200 <= status < 300 or not isinstance(found, dict) or not {"code", "message"} <= found.keys():
            raise Retriable("daemon-answer-unreadable", f"{self._url} is no daemon of onefold: it answered {status}")
        kind: type[OnefoldError] = Retriable if status >= 500 else ConfigError
        raise kind(str(found["code"]), str(found["message"]))


def _is_of_daemon(path: tuple[str, ...], found: object) -> bool:
    """Whether that can be what a daemon answers at this path: many programs answer with JSON."""
    if path[-1] == "epochs":
        return isinstance(found, dict) and isinstance(found.get("epochs"), list)
    pipelines = found if path == ("pipelines",) else [found]
    wanted = {"name", "state", "latest"}
    return isinstance(pipelines, list) and all(isinstance(one, dict) and wanted <= one.keys() for one in pipelines)


def _context(ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ValueError) as error:
        raise ConfigError("file-unreadable", f"--ca {ca} has no certificate that can be read: {error}") from error
