"""Where the API listens: an address, who may reach it, and its server in a thread.

Its connections are few, and none only waits: who may not ask can still connect, and each connection takes a file of the
process that runs the pipelines."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from onefold.core import ConfigError
from onefold.daemon.access.token import is_loopback, make_own_token, read_token

DEFAULT = "127.0.0.1:8417"
_GRACE_S = 3

log = logging.getLogger("onefold.daemon")


@dataclass(frozen=True)
class Listening:
    """Where to listen, and for whom. Port 0 is any that is free."""

    host: str
    port: int
    token: str = field(repr=False)
    tls_cert: Path | None = None
    tls_key: Path | None = None

    @classmethod
    def of(
        cls,
        address: str,
        token_file: Path | None = None,
        tls_cert: Path | None = None,
        tls_key: Path | None = None,
        insecure: bool = False,
    ) -> Listening:
        """For who has the token in a file, or else this user's own. Raises ConfigError where the network would carry it
        in clear."""
        host, port = _parsed(address)
        if (tls_cert is None) is not (tls_key is None):
            raise ConfigError("options-conflict", "--tls-cert and --tls-key go together: name both, or neither")
        if tls_cert is None and not insecure and not is_loopback(host):
            raise ConfigError(
                "api-open",
                f"the token would cross the network to {address} in clear: name --tls-cert and --tls-key, or, where"
                " something else encrypts, --insecure",
            )
        if tls_cert is not None:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls_cert, tls_key, password="")
            except (OSError, ValueError) as error:  # SSLError is an OSError
                raise ConfigError(
                    "tls-files-unusable", f"--tls-cert {tls_cert} and --tls-key {tls_key} cannot be used: {error}"
                ) from error
        token = make_own_token() if token_file is None else read_token(token_file)
        return cls(host, port, token, tls_cert, tls_key)

    @classmethod
    def on_this_machine(cls, address: object) -> Listening:
        """`listen=` of a run, for this user's own token. Raises ConfigError also where its port is taken."""
        if not isinstance(address, str) or not is_loopback(_parsed(address)[0]):
            raise ConfigError(
                "listen-elsewhere",
                f"listen={address!r} is no place of this machine alone, as '127.0.0.1:8080' is: for others that ask,"
                " have `onefold run` run it, which takes a certificate (--tls-cert)",
            )
        listening = cls.of(address)
        listening.bind().socket.close()
        return listening

    def bind(self) -> Listener:
        """Take the port. Raises ConfigError where that cannot be."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            listener = LimitedListener(found[0])
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(found[4])
                listener.listen(128)
            except BaseException:
                listener.close()
                raise
        except OSError as error:
            raise ConfigError(
                "address-not-free",
                f"the API cannot listen on {self.host}:{self.port}: {error.strerror or error}. Another daemon may run"
                " there: name another port, as 127.0.0.1:8418, or none (of `onefold run` it is --listen none)",
            ) from error
        return Listener(self, listener)


@dataclass(frozen=True)
class Listener:
    """A port that is taken; nobody answers there yet."""

    settings: Listening
    socket: socket.socket

    @property
    def url(self) -> str:
        scheme = "http" if self.settings.tls_cert is None else "https"
        host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
        return f"{scheme}://{host}:{self.socket.getsockname()[1]}"


class Server:
    """Answers at a listener, in a thread."""

    def __init__(self, listener: Listener, app: Any) -> None:
        self._listener = listener
        settings = listener.settings
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            lifespan="off",
            http=BoundedConnection,
            timeout_graceful_shutdown=_GRACE_S,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="onefold-api", daemon=True)

    def start(self) -> None:
        logging.getLogger("uvicorn").setLevel(logging.ERROR)  # its warnings are of requests, of who may not ask, too
        self._thread.start()
        log.info("the API answers at %s (its page: `onefold page`)", self._listener.url)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(_GRACE_S + 2)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=Loop) as runner:
                runner.run(self._server.serve(sockets=[self._listener.socket]))
        except Exception:
            log.exception("the API has ended, and the pipelines go on without it")


class LimitedListener(socket.socket):
    """A listening socket that closes at once what comes while `OPEN_MAX` connections are open, before anything is read
    of it, a TLS handshake too."""

    OPEN_MAX = 200
    REST_S = 0.1  # where the process has no file left: without it, the loop would ask again at once

    def __init__(self, family: int) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._open: list[socket.socket] = []

    def accept(self) -> tuple[socket.socket, Any]:
        try:
            connection, address = super().accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            time.sleep(self.REST_S)
            raise BlockingIOError from error  # asyncio would log it, a hundred times a second
        self._open = [one for one in self._open if one.fileno() != -1]
        if len(self._open) >= self.OPEN_MAX:
            connection.close()
            raise ConnectionAbortedError
        self._open.append(connection)
        return connection, address


class Loop(asyncio.SelectorEventLoop):
    """The API's own, which asks a `LimitedListener` for connections, and ends a handshake that takes its time."""

    HANDSHAKE_WITHIN_S = 10.0

    async def create_server(self, *args: Any, **options: Any) -> asyncio.Server:
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = self.HANDSHAKE_WITHIN_S
        return await super().create_server(*args, **options)


class BoundedConnection(H11Protocol):
    """One that is closed where no whole request comes within `REQUEST_WITHIN_S`, and in any case where all that came so
    far is of who may not ask: their requests must not keep it, nor answers that they do not take."""

    REQUEST_WITHIN_S = 10.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._look_after(None)

    def _look_after(self, last: RequestResponseCycle | None) -> None:
        """Look again in a while, whether another request than the last one has come."""
        self.loop.call_later(self.REQUEST_WITHIN_S, self._look, last)

    def _look(self, last: RequestResponseCycle | None) -> None:
        now: RequestResponseCycle | None = self.cycle
        if self.transport.is_closing():
            return
        if now is None or not now.scope["state"].get("is_admitted") or (now is last and now.response_complete):
            self.transport.abort()
        else:
            self._look_after(now)


def _parsed(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ConfigError("option-value", f"listen {address!r}: HOST:PORT is wanted, as {DEFAULT}")
    return host, int(port)
