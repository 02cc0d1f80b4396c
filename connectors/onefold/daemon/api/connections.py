"""The API's connections: few, and none that only waits. Who may not ask can still connect, and each connection takes a
file of the process that runs the pipelines."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

__all__ = ["Connection"]


class Connection(H11Protocol):
    """One that is closed where no whole request comes within `REQUEST_WITHIN_S`, or where there are too many."""

    OPEN_MAX = 200
    REQUEST_WITHIN_S = 10.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        if len(self.connections) > self.OPEN_MAX:
            transport.abort()
        else:
            self._look_after(None)

    def _look_after(self, last: RequestResponseCycle | None) -> None:
        """Look again in a while, whether another request than the last one has come."""
        self.loop.call_later(self.REQUEST_WITHIN_S, self._look, last)

    def _look(self, last: RequestResponseCycle | None) -> None:
        now: RequestResponseCycle | None = self.cycle
        if self.transport.is_closing():
            return
        if now is last and (now is None or now.response_complete):
            self.transport.abort()
        else:
            self._look_after(now)
