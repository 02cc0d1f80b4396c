"""Who may ask what: the token, and requests that a page of another site has a browser send.

/health  answers everybody: it says that the process is up, and probes come under any Host
token    with one, all else needs it: as bearer, or as the password of HTTP's basic authentication, for which browsers
         ask by themselves
Host     without a token it must be this machine's: a name of somebody else's that resolves to 127.0.0.1 is refused
         (DNS rebinding)
Origin   a browser's, if it sends one, must be the page's own
changes  POST needs the bearer token, or the header X-Onefold, which no other site's page may send
body     at most 64 KiB: a longer one is not read
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onefold.daemon.api.access import HEADER

__all__ = ["Guard"]

_OPEN = "/health"
_SAFE = ("GET", "HEAD")
_BODY_BYTES_MAX = 64 << 10
_SAID = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
}
_REFUSALS = {
    "token-missing": (401, "this daemon answers with its token only: Authorization: Bearer TOKEN"),
    "token-wrong": (401, "that is not this daemon's token"),
    "host-foreign": (403, "the Host header names another machine: ask 127.0.0.1 or localhost, or set a token"),
    "origin-foreign": (403, "the request comes from a page of another site"),
    "header-missing": (403, f"what changes something needs the header {HEADER}: 1, or the bearer token"),
}


class Guard:
    """Middleware before everything else."""

    def __init__(self, app: ASGIApp, token: str | None, hosts: Collection[str]) -> None:
        self._app = app
        self._token = None if token is None else token.encode()
        self._hosts = {*hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def said(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _SAID.items():
                    headers.setdefault(name, value)
            await send(message)

        read_bytes = 0

        async def bounded() -> Message:
            nonlocal read_bytes
            message = await receive()
            read_bytes += len(message.get("body", b""))
            if read_bytes > _BODY_BYTES_MAX:
                raise HTTPException(413, f"a request's body has at most {_BODY_BYTES_MAX:,} bytes")
            return message

        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, bounded, said)
        else:
            await _answer(said, refusal)

    def _refusal(self, scope: Scope) -> str | None:
        """The code of the reason against the request; None where there is none."""
        if scope["path"] == _OPEN and scope["method"] in _SAFE:
            return None
        headers = Headers(scope=scope)
        scheme, _, given = headers.get("authorization", "").partition(" ")
        is_bearer = scheme.lower() == "bearer"
        if self._token is None:
            if _name(headers.get("host", "")) not in self._hosts:
                return "host-foreign"
        elif not given:
            return "token-missing"
        elif not hmac.compare_digest(given.strip().encode() if is_bearer else _password(scheme, given), self._token):
            return "token-wrong"
        origin = headers.get("origin")
        if origin is not None and not _is_own(origin, headers.get("host", "")):
            return "origin-foreign"
        if scope["method"] in _SAFE or (self._token is not None and is_bearer):
            return None
        return None if headers.get(HEADER) else "header-missing"


def _password(scheme: str, given: str) -> bytes:
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(given.strip(), validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


def _name(host: str) -> str:
    """The host of a Host header, without its port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_own(origin: str, host: str) -> bool:
    try:
        return bool(host) and urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


async def _answer(send: Send, code: str) -> None:
    status, message = _REFUSALS[code]
    body = json.dumps({"code": code, "message": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers += [(b"www-authenticate", b"Bearer"), (b"www-authenticate", b'Basic realm="onefold"')]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
