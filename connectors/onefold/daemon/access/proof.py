"""How a command and the daemon prove to each other that they have the token, which neither sends: where the daemon
listens on this machine, another user's program may listen while it is down.

1. Whatever is asked without a proof is refused, with a nonce of the daemon's in `X-Onefold-Nonce`.
2. The command sends `Authorization: Onefold NONCE OWN_NONCE MAC`. The MAC is of both nonces, the method, the target and
   the address that it is connected to, which is the daemon's own: who listens at another one, and passes all on to the
   daemon, is not taken for it. Of a daemon that is known by its certificate, or is asked with `--insecure`, something
   may stand before it, and the MAC names no address.
3. The daemon answers with a MAC of that one, the status and the body, in `X-Onefold-Proof`.

So who stands between can neither change nor repeat what is asked or answered. What is asked so has no body.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Sequence
from typing import Any

SCHEME = "Onefold"
NONCE = "X-Onefold-Nonce"
ANSWER = "X-Onefold-Proof"
ANYWHERE = ""
PRIVATELY = (
    "Where others use the daemon's machine, open it in a private window: who listened there while the daemon was down"
    " may have left a program in this browser, which would get the key."
)


def of_request(token: str, nonce: str, own_nonce: str, method: str, target: str, at: str) -> str:
    """`at` is the `place` that is asked, or ANYWHERE."""
    return _mac(token, "request", nonce, own_nonce, method, target, at)


def place(address: Sequence[Any]) -> str:
    """A socket's address, as both its ends name it: where it takes IPv4 by IPv6, only one says so."""
    return f"{str(address[0]).removeprefix('::ffff:')} {address[1]}"


def of_answer(token: str, request: str, status: int, body: bytes) -> str:
    """`request` is the MAC of what was asked."""
    return _mac(token, "answer", request, str(status), hashlib.sha256(body).hexdigest())


def page_key(token: str, nonce: str) -> str:
    """What a browser sends in place of the token. It is good as long as the process is up that made the nonce: who
    listens in its place afterwards gets nothing that the next process takes."""
    return _mac(token, "page", nonce.partition(".")[0])


def page_link(url: str, token: str, nonce: str) -> str:
    """A link to the page that logs a browser in. No browser sends a server what follows the #."""
    return f"{url.rstrip('/')}/#key={page_key(token, nonce)}"


def _mac(key: str, *said: str) -> str:
    return hmac.new(key.encode(), "\n".join(said).encode(), "sha256").hexdigest()


class Nonces:
    """The nonces of one process. Each is good for one request, for `LIVES_S`; only those that were used take memory."""

    LIVES_S = 60.0

    def __init__(self) -> None:
        self._process = secrets.token_hex(16)
        self._key = secrets.token_hex(32)
        self._used: dict[str, float] = {}  # until when they would be good

    def new(self) -> str:
        said = f"{self._process}.{int((time.monotonic() + self.LIVES_S) * 1000)}.{secrets.token_hex(16)}"
        return f"{said}.{_mac(self._key, said)}"

    def use(self, nonce: str) -> bool:
        """Whether the nonce is one of these, and good. It is good once."""
        said, _, mac = nonce.rpartition(".")
        if not hmac.compare_digest(mac.encode(), _mac(self._key, said).encode()):
            return False
        now_s, until_s = time.monotonic(), int(said.split(".")[1]) / 1000
        self._used = {used: until for used, until in self._used.items() if until > now_s}
        if until_s <= now_s or nonce in self._used:
            return False
        self._used[nonce] = until_s
        return True
