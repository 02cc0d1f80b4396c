"""Where the API listens: an address, who may reach it, and its server in a thread."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from asyncio import Runner
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from onefold.core import ConfigError
from onefold.daemon.access.token import is_loopback, make_own_token, read_token
from onefold.daemon.api.connections import BoundedConnection, LimitedListener, Loop

__all__ = ["DEFAULT", "Listener", "Listening", "Server"]

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
            with Runner(loop_factory=Loop) as runner:
                runner.run(self._server.serve(sockets=[self._listener.socket]))
        except Exception:
            log.exception("the API has ended, and the pipelines go on without it")


def _parsed(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ConfigError("option-value", f"listen {address!r}: HOST:PORT is wanted, as {DEFAULT}")
    return host, int(port)
