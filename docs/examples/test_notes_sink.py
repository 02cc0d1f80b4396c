"""The sink's own tests, on a real Postgres: pytest test_notes_sink.py"""

import uuid
from functools import partial

import psycopg
import pyarrow as pa
import pytest
from notes_sink import NotesSink

from onefold.core import Committable, Retriable, TaskId
from onefold.testing import check_sink

ROWS = pa.record_batch({"id": pa.array([1, 2], pa.int64()), "name": pa.array(["one", "two"])})


def ask(url: str, query: str) -> list[int]:
    with psycopg.connect(url) as connection:
        return [value for (value,) in connection.execute(query.encode())]


def prepared(sink: NotesSink) -> Committable:
    """Two rows of epoch 1, ready to be committed."""
    writer = sink.writer(TaskId("p", generation=1, epoch=1, timestamp_ms=1, attempt=uuid.uuid4()))
    writer.write(ROWS)
    work = writer.prepare()
    assert work is not None
    return work


def test_it_keeps_every_promise_of_a_sink(postgres_url):
    waiting = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"
    report = check_sink(
        partial(NotesSink, postgres_url),
        rows=lambda: ask(postgres_url, "SELECT id FROM notes"),  # what a reader sees
        prepared=lambda: ask(postgres_url, waiting)[0],  # what waits there, unseen
        make_sibling=partial(NotesSink, postgres_url, name="another"),
        steps_max=3,  # of each call's lines; more of them take longer
        moments=1,
    )
    print(report)


def test_what_is_prepared_outlives_a_server_that_is_killed(postgres, postgres_url):
    sink = NotesSink(postgres_url)
    sink.open("p", ROWS.schema)
    work = prepared(sink)
    postgres.kill()
    with pytest.raises(Retriable):
        sink.recover("p")
    postgres.start()
    committer = sink.recover("p")
    committer.verify([work])
    assert [left.handle for left in committer.leftovers(up_to_generation=1)] == [work.handle]
    committer.abort([work])
    assert ask(postgres_url, "SELECT id FROM notes") == []


@pytest.mark.only_with_servers("containers", reason="cuts the server's network")
def test_a_network_that_swallows_packets_is_noticed_and_what_was_prepared_is_found_again(postgres, postgres_url):
    sink = NotesSink(postgres_url)
    committer = sink.open("p", ROWS.schema)
    work = prepared(sink)
    with postgres.cut(direction="outgoing"), pytest.raises(Retriable):  # it hears, and nobody hears it
        committer.verify([work])
    committer.verify([work])
    committer.abort([work])
