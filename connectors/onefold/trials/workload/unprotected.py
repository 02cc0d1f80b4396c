"""What a Postgres sink does without the protocol, for comparisons: the demo's with protection off, and the bench's."""

from __future__ import annotations

from onefold.clients.postgres.sessions import Connection
from onefold.core import SinkWriter, TaskId
from onefold.sinks import PostgresSink
from onefold.sinks.postgres.copy.loading import Load
from onefold.sinks.postgres.writer import PostgresWriter


class UnprotectedSink(PostgresSink):
    """Appends, and every task commits for itself: a retry or replay doubles rows."""

    def __init__(self, url: str, table: str) -> None:
        super().__init__(url, table, delivery="two_phase")

    def writers_max(self) -> int | None:
        return None  # nothing is prepared

    def writer(self, task: TaskId) -> SinkWriter:
        assert self._plan is not None, "opened before it writes"
        return _CommittingWriter(self._settings, self._plan, task)


class _CommittingWriter(PostgresWriter):
    def _finish(self, connection: Connection, load: Load) -> str:
        del load
        connection.execute("COMMIT")
        return f"committed/{self._task.attempt.hex}"
