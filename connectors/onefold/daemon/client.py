"""Asks the API of a running daemon."""

from __future__ import annotations

import hmac
import json
import secrets
import ssl
import time
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from onefold.core import ConfigError, OnefoldError, Retriable
from onefold.core.values.plain import SAID_MAX, plain
from onefold.daemon.access import proof
from onefold.daemon.access.token import is_loopback, own_token_file, read_own_token, read_token

_WITHIN_S = 30.0
_ANSWER_BYTES_MAX = 64 << 20


class Client:
    """Raises what the daemon answers with; Retriable where there is none, or it has no answer now.

    What answers has to prove that it has the token, which is not sent, and that it is where it was asked: no other
    program's answer is shown. Over the network it asks by TLS alone, or where `insecure` says that something else
    encrypts; then something may stand before the daemon, on this machine, too.
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
        self._token = None if token_file is None else read_token(token_file)
        self._token_file = token_file
        self._is_direct = self._tls is None and not insecure
        if self._tls is None and not insecure and not is_loopback(self._host):
            raise ConfigError(
                "token-in-clear",
                f"what the daemon at {self._host} answers would cross the network in clear: ask https://, or, where"
                " something else encrypts, --insecure",
            )

    def get(self, *path: str, **query: object) -> Any:
        wanted = {name: value for name, value in query.items() if value is not None}
        return self._ask("GET", path, f"?{urlencode(wanted)}" if wanted else "")[0]

    def post(self, *path: str) -> Any:
        return self._ask("POST", path)[0]

    def page(self) -> str:
        """A link to the daemon's page that logs a browser in: a secret."""
        _, nonce = self._ask("GET", ("pipelines",))
        return proof.page_link(self._url, self._known_token(), nonce)

    def _ask(self, method: str, path: tuple[str, ...], query: str = "") -> tuple[Any, str]:
        """The answer, and the nonce of the daemon that gave it."""
        target = f"/{'/'.join(quote(part, safe='') for part in path)}{query}"
        try:
            connection = self._connection()
            try:
                connection.request("GET", f"{self._base}/pipelines")
                at = proof.place(connection.sock.getpeername()) if self._is_direct else proof.ANYWHERE
                refused = connection.getresponse()
                _read(refused)
                nonce, own_nonce = refused.headers.get(proof.NONCE, ""), secrets.token_hex(16)
                if not nonce or not nonce.isascii() or not nonce.isprintable():
                    raise Retriable(
                        "daemon-answer-unreadable",
                        f"{self._url} is no daemon of onefold: it answered {refused.status}",
                    )
                token = self._known_token()
                mac = proof.of_request(token, nonce, own_nonce, method, target, at)
                proven = {"Authorization": f"{proof.SCHEME} {nonce} {own_nonce} {mac}"}
                connection.request(method, self._base + target, headers=proven)
                answer = connection.getresponse()
                status, body = answer.status, _read(answer)
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
                f"no daemon answers at {self._url}: {plain(str(error)) or type(error).__name__}. Start it with `onefold"
                f" run`, or say where it is: --url, or ONEFOLD_URL{self._hint(error)}",
            ) from error
        wanted = proof.of_answer(token, mac, status, body)
        if not hmac.compare_digest(answer.headers.get(proof.ANSWER, "").encode(), wanted.encode()):
            raise ConfigError(
                "token-wrong",
                f"what answers at {self._url} has another token than {self._token_file or own_token_file()}, or passes"
                " all on to a daemon at another address: it is a daemon of another user, or none. Name the file with"
                " its token (--token-file), or, where it is a tunnel of your own, --insecure",
            )
        return _found(status, body), nonce

    def _known_token(self) -> str:
        if self._token is None:
            self._token = _own_token(self._url)
        return self._token

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


def _own_token(url: str) -> str:
    try:
        file = own_token_file()
        if file.exists():
            return read_own_token(file)
        why = f"{file} is not there"
    except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home
        why = str(error)
    raise ConfigError(
        "token-missing",
        f"a daemon answers at {url}, and this user has no token of one ({why}): name the file with its token"
        " (--token-file), or ask as the user that runs it",
    )


def _read(answer: HTTPResponse) -> bytes:
    """Its body. Raises HTTPException where that is too long, or takes too long."""
    body, until_s = bytearray(), time.monotonic() + _WITHIN_S
    with answer:  # read1 leaves it open at its end
        while part := answer.read1(1 << 16):
            body += part
            if len(body) > _ANSWER_BYTES_MAX or time.monotonic() > until_s:
                raise HTTPException(f"an answer of more than {_ANSWER_BYTES_MAX:,} bytes, or {_WITHIN_S:g} s")
    return bytes(body)


def _found(status: int, body: bytes) -> Any:
    """What the daemon says, which has proven that it is one."""
    found = json.loads(body)
    if status < 300:
        return found
    kind: type[OnefoldError] = Retriable if status >= 500 else ConfigError
    raise kind(plain(found["code"]), plain(found["message"], SAID_MAX))


def _context(ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ValueError) as error:
        raise ConfigError("file-unreadable", f"--ca {ca} has no certificate that can be read: {error}") from error
