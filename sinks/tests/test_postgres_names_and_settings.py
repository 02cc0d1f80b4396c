"""Names, settings and the type map, without a server."""

from __future__ import annotations

import pickle
import subprocess
import sys
import uuid
from urllib.parse import quote

import psycopg
import psycopg.conninfo
import pyarrow as pa
import pytest
import sqlalchemy as sa
from harness.errors import raises
from hypothesis import given
from hypothesis import strategies as st

from onefold.clients.postgres.sessions import _lasting_settings, conninfo, starts_as
from onefold.clients.postgres.store import store_url
from onefold.core.errors import ConfigError
from onefold.core.values.exact import Mismatch
from onefold.sinks import PostgresSink
from onefold.sinks.postgres.copy.encoding import to_wire
from onefold.sinks.postgres.naming import GID_BYTES_MAX, Gid, TargetName, gid_prefix, names_in, stage_name
from onefold.sinks.postgres.schema.type_mapping import default_type
from onefold.sinks.staged.attempts import attempt_number

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=150)
NUMBERS = st.integers(0, 2**63 - 1)


@given(NAMES, NAMES, NUMBERS, NUMBERS, st.uuids())
def test_a_gid_fits_and_gives_back_what_it_was_made_of(
    pipeline: str, sink: str, generation: int, epoch: int, attempt: uuid.UUID
) -> None:
    gid = Gid(gid_prefix(pipeline, sink), generation, epoch, attempt)
    assert len(str(gid).encode()) <= GID_BYTES_MAX
    assert str(gid).isascii()
    assert Gid.parse(gid.prefix, str(gid)) == Gid.parse_any(str(gid)) == gid
    assert names_in(gid.prefix) in ((pipeline, sink), None)
    assert names_in(gid.prefix) or max(len(quote(name, safe="")) for name in (pipeline, sink)) > 49


@given(NAMES, NAMES, NAMES, NAMES)
def test_a_prefix_is_one_pipelines_and_one_sinks_alone(a: str, b: str, c: str, d: str) -> None:
    one, other = gid_prefix(a, b), gid_prefix(c, d)
    assert one.startswith(other) == ((a, b) == (c, d))
    assert (stage_name(a, b) == stage_name(c, d)) == ((a, b) == (c, d))


@pytest.mark.parametrize(
    "text", ["of/p/t/1", "of/p/t/x/1/" + "0" * 32, "of/p/t/1/1/zz", "of/q/t/1/1/" + "0" * 32, "of/p/t/1/01/" + "0" * 32]
)
def test_a_foreign_gid_is_not_ours(text: str) -> None:
    assert Gid.parse("of/p/t/", text) is None


@given(st.uuids(version=4))
def test_an_attempts_number_is_a_bigint(attempt: uuid.UUID) -> None:
    assert 0 <= attempt_number(attempt) < 2**63


@pytest.mark.parametrize(
    ("text", "schema", "name"),
    [
        ("orders", None, "orders"),
        ("Orders", None, "Orders"),
        ("shop.orders", "shop", "orders"),
        ('"a.b"."c""d"', "a.b", 'c"d'),
        ('shop."x y"', "shop", "x y"),
    ],
)
def test_a_tables_name_is_read_as_it_is_written(text: str, schema: str | None, name: str) -> None:
    assert TargetName.parse(text) == TargetName(schema, name)
    assert TargetName.parse(str(TargetName(schema, name))) == TargetName(schema, name)


@pytest.mark.parametrize("text", ["", ".", "a.", "a.b.c"])
def test_a_tables_name_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        TargetName.parse(text)


def test_the_store_url_keeps_every_parameter_and_odd_passwords() -> None:
    url = "postgresql://me:p%40ss%2Fw%3Aord@db.example:6432/shop?sslmode=require&options=-c%20role%3Downer"
    parsed = sa.make_url(store_url(url))
    assert parsed.drivername == "postgresql+psycopg"
    assert (parsed.username, parsed.password) == ("me", "p@ss/w:ord")
    assert (parsed.host, parsed.port, parsed.database) == ("db.example", 6432, "shop")
    writable = {"target_session_attrs": "read-write"}
    assert dict(parsed.query) == {"sslmode": "require", "options": "-c role=owner", **writable}
    socket = sa.make_url(store_url("postgresql:///shop?host=/run/postgresql&port=5433"))
    assert dict(socket.query) == {"host": "/run/postgresql", "port": "5433", **writable}


def test_connections_carry_tcp_limits_and_the_pipelines_name_and_the_url_wins() -> None:
    info = conninfo("postgresql://h/d?keepalives_idle=7", "p" * 100, 5)
    for part in ("connect_timeout=5", "tcp_user_timeout=60000", "keepalives=1", "keepalives_idle=7"):
        assert part in info
    assert "application_name='onefold " + "p" * 55 + "'" in info
    for part in ("tcp_keepalives_idle = 30", "tcp_keepalives_count = 3", "tcp_user_timeout = 60000"):
        assert f"SET LOCAL {part};" in _lasting_settings(1.0, is_durable=True), "and so does the server's end of them"


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=60))
def test_a_role_starts_the_session_whatever_its_name_and_whatever_the_url_sets(role: str) -> None:
    for info in (
        conninfo("postgresql://h/d", "p", 5, role),
        conninfo("host=h options='-crole=x -c a=b'", "p", 5, role),
    ):
        parameters = psycopg.conninfo.conninfo_to_dict(info)
        assert starts_as(parameters) == role
    assert starts_as(psycopg.conninfo.conninfo_to_dict(conninfo("host=h options='-c a=b'", "p", 5))) is None


def test_settings_that_make_no_sense_are_refused() -> None:
    for wrong in ({"delivery": "exactly"}, {"lock_timeout_s": 0}, {"connect_timeout_s": -1}):
        with pytest.raises(ConfigError):
            PostgresSink("postgresql://h/d", "t", **wrong)  # type: ignore[arg-type]


def test_a_sink_that_was_not_opened_pickles_and_writes_nothing() -> None:
    from onefold.core.contract import TaskId

    sink = pickle.loads(pickle.dumps(PostgresSink("postgresql://u:hunter2@h/d", "s.t", name="n")))
    assert (sink.name, sink.table, sink.delivery_reason, sink.writers_max()) == ("n", "s.t", None, None)
    assert "hunter2" not in repr(sink)
    with raises(ConfigError, "sink-not-opened"):
        sink.writer(TaskId("p", 1, 1, 1, uuid.uuid4()))


def test_importing_the_sinks_imports_no_driver() -> None:
    code = "import sys, onefold.sinks; assert not {'psycopg', 'pgpq'} & set(sys.modules); onefold.sinks.PostgresSink"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("kind", [pa.decimal256(76, 2), pa.month_day_nano_interval()])
def test_a_type_that_postgres_has_no_place_for_is_none(kind: pa.DataType) -> None:
    assert default_type(kind) is None


def test_a_cast_that_would_lose_something_raises() -> None:
    from onefold.sinks.postgres.schema.type_mapping import Column, Wire

    column = Column("c", pa.timestamp("ns"), Wire.PLAIN, pa.timestamp("us"), "timestamp")
    with pytest.raises(Mismatch):
        to_wire(column, pa.array([1], pa.timestamp("ns")))
