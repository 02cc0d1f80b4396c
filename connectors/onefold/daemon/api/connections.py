"""The API's connections: few, and none that only waits. Who may not ask can still connect, and each connection takes a
file of the process that runs the pipelines."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

__all__ = ["BoundedConnection", "LimitedListener", "Loop"]


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
