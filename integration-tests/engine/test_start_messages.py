"""What a later start asks of Postgres, by how many sessions and messages: each message costs a kill -9 its time."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from onefold.clients.postgres import sessions
from onefold.engine.driver.flow_run import FlowRun
from onefold.flow import Flow
from onefold.sinks import PostgresSink
from onefold.sources import FileSource

pytestmark = pytest.mark.servers

SESSIONS_MAX = 1
MESSAGES_MAX = 60  # of the driver, before it plans its first epoch


def run(root: Path, url: str) -> None:
    flow = Flow("lines")
    source = FileSource(str(root / "in"), format="json", schema="id long")
    flow.source(source, uid="in").sink(PostgresSink(url, "lines", delivery="staged"))

    flow.run(checkpoint=str(root / "checkpoint"), on_outcome=lambda _: os.kill(os.getpid(), signal.SIGTERM))


def test_store_and_sink_of_one_database_start_by_one_session_in_few_messages(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/1.json").write_text(json.dumps({"id": 1}) + "\n")
    run(tmp_path, postgres_url)
    (tmp_path / "in/2.json").write_text(json.dumps({"id": 2}) + "\n")

    opened, sent, then = [0], [0], list[tuple[int, int]]()
    connect, wait, epochs = sessions._connect, sessions.Connection.wait, FlowRun._epochs

    def connecting(*of: Any) -> sessions.Connection:
        opened[0] += 1
        return connect(*of)

    def waiting(self: sessions.Connection, *of: Any, **more: Any) -> Any:
        sent[0] += 1
        return wait(self, *of, **more)

    def starting(self: FlowRun, *of: Any) -> None:
        then.append((opened[0], sent[0]))
        epochs(self, *of)

    monkeypatch.setattr(FlowRun, "_epochs", starting)
    monkeypatch.setattr(sessions, "_connect", connecting)
    monkeypatch.setattr(sessions.Connection, "wait", waiting)
    run(tmp_path, postgres_url)
    ((by_then, messages),) = then
    assert by_then <= SESSIONS_MAX and messages <= MESSAGES_MAX, (by_then, messages)
