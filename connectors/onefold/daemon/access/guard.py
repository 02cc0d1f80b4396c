"""Who may ask what: all needs the token, but what says nothing of the pipelines.

/health        answers everybody: it says that the process is up, and probes come under any Host
/, /static/    the page's own files, the same for everybody; what it shows it asks for
bearer         the token, or the key of the page (`onefold page`): no browser sends one for the page of another site
proof          of who has the token and does not send it (proof.py)
body           at most 64 KiB: a longer one is not read
"""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onefold.daemon.access import proof

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
    "token-missing": "this daemon answers with its token only: Authorization: Bearer TOKEN. `onefold page` prints a"
    " link for a browser",
    "token-wrong": "that is not this daemon's token",
}


class Guard:
    """Middleware before everything else."""

    def __init__(self, app: ASGIApp, token: str, nonces: proof.Nonces) -> None:
        self._app = app
        self._token = token
        self._nonces = nonces
        self._bearers = [key.encode() for key in (token, proof.page_key(token, nonces.new()))]

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

        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_bearer(given.strip()):
            await self._app(_admitted(scope), bounded, said)
        elif scheme == proof.SCHEME and (mac := self._proven(scope, given)):
            await self._app(_admitted(scope), bounded, _Proving(said, self._token, mac))
        elif _is_open(scope):
            await self._app(scope, bounded, said)
        else:
            code = "token-wrong" if given else "token-missing"
            headers = {"www-authenticate": "Bearer", proof.NONCE: self._nonces.new()}
            await JSONResponse({"code": code, "message": _REFUSALS[code]}, 401, headers)(scope, receive, said)

    def _is_bearer(self, given: str) -> bool:
        return any(hmac.compare_digest(given.encode(), each) for each in self._bearers)

    def _proven(self, scope: Scope, given: str) -> str | None:
        """The MAC of a request that proves that it comes from who has the token."""
        nonce, _, rest = given.partition(" ")
        own_nonce, _, mac = rest.partition(" ")
        query = scope["query_string"].decode("latin-1")
        target = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
        is_right = not _has_body(scope) and any(
            hmac.compare_digest(
                mac.encode(), proof.of_request(self._token, nonce, own_nonce, scope["method"], target, at).encode()
            )
            for at in (proof.place(scope["server"]), proof.ANYWHERE)
        )
        return mac if is_right and self._nonces.use(nonce) else None


class _Proving:
    """Sends an answer once it is whole, with the proof that it is the daemon's."""

    def __init__(self, send: Send, token: str, request: str) -> None:
        self._send, self._token, self._request = send, token, request
        self._start: Message = {}
        self._body = bytearray()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        self._body += message.get("body", b"")
        if not message.get("more_body", False):
            body = bytes(self._body)
            mac = proof.of_answer(self._token, self._request, self._start["status"], body)
            MutableHeaders(scope=self._start)[proof.ANSWER] = mac
            await self._send(self._start)
            await self._send({"type": "http.response.body", "body": body})


def _admitted(scope: Scope) -> Scope:
    """The scope, which says from here on that who asks may: its connection is not closed as a stranger's is."""
    scope["state"]["is_admitted"] = True
    return scope


def _is_open(scope: Scope) -> bool:
    path: str = scope["path"]
    return scope["method"] in ("GET", "HEAD") and (path in ("/health", "/") or path.startswith("/static/"))


def _has_body(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
