"""Prepared transactions that several sessions commit, where a session or a thread is missing."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest
from harness.errors import raises

from onefold.core.contract import Committable, SinkKind
from onefold.core.errors import InDoubt
from onefold.sinks.postgres.prepared import commit_all

MANY = [Committable("rows", SinkKind.TWO_PHASE, f"gid{number}", 1, 1, 3) for number in range(9)]
ALL = {f"COMMIT PREPARED '{each.handle}'".encode() for each in MANY}


class Session:
    """It commits only once `begun` is set."""

    closed = is_pooled = False

    def __init__(self, begun: threading.Event) -> None:
        self.begun, self.said = begun, list[bytes]()

    def outside(self, statement: bytes) -> None:
        assert self.begun.wait(20)
        self.said.append(statement)


class Lost(Session):
    """Its server ends it at its first statement."""

    def outside(self, statement: bytes) -> None:
        self.closed = True
        self.said.append(statement)
        self.begun.set()
        raise psycopg.OperationalError("server closed the connection unexpectedly")


@pytest.mark.parametrize("at", range(3))
def test_what_a_session_that_dies_leaves_is_committed_by_the_others_and_its_own_is_in_doubt(at: int) -> None:
    begun = threading.Event()
    sessions: list[Any] = [Session(begun), Session(begun)]
    sessions.insert(at, lost := Lost(begun))
    with raises(InDoubt, "commit-unanswered"):
        commit_all(sessions, MANY, "sink 'rows'")
    assert len(lost.said) == 1
    assert sorted(statement for each in sessions for statement in each.said) == sorted(ALL)


def test_where_no_thread_can_be_started_this_one_commits_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    begun = threading.Event()
    begun.set()
    sessions: list[Any] = [Session(begun) for _ in range(3)]
    assert commit_all(sessions, MANY, "sink 'rows'") == {}
    assert [{*each.said} for each in sessions] == [ALL, set(), set()]
