from __future__ import annotations
import threading, time
from dataclasses import replace
from typing import Any
import psycopg, pyarrow as pa, pytest
from onefold.clients.postgres.message import CopyData
from onefold.sinks.postgres.merge import direct as of_direct
from onefold.core.errors import OnefoldError
from .test_direct import *  # noqa
from .test_direct import Direct, UPSERT, KEYED
from onefold.store.checkpoint_store import CheckpointStore
pytestmark = pytest.mark.servers


class Frozen:
    def __init__(self, pieces): self.pieces, self.there, self.go = pieces, threading.Event(), threading.Event()
    def __iter__(self):
        for n, p in enumerate(self.pieces):
            if n == 1:
                self.there.set(); self.go.wait(60)
            yield p


@pytest.mark.parametrize("step", [True, False])
def test_freeze(direct, ask, monkeypatch, step, postgres_url):
    ask(KEYED)
    opts = {**UPSERT} if step else {"rows": pa.record_batch({"id": [1,2,3], "v": [1,1,1], "gone": [False]*3})}
    p = direct(lock_timeout_s=4, **opts)
    frozen = []
    loading = of_direct._loading
    def froze(*a):
        q, d = loading(*a)
        if not frozen:
            frozen.append(Frozen(d.pieces)); d = CopyData(frozen[0])
        return q, d
    monkeypatch.setattr(of_direct, "_loading", froze)
    rec = p.open(); work = p.work(rec)
    errors = []
    def run():
        try: p.decide(rec, work)
        except BaseException as e: errors.append(e)
    t = threading.Thread(target=run); t.start()
    while not frozen: time.sleep(0.01)
    assert frozen[0].there.wait(10)
    t0 = time.monotonic()
    store = CheckpointStore(p.sink.store_url() or "")
    try:
        while time.monotonic() - t0 < 25:
            try:
                g = store.acquire("p", 0)
                print("acquired after", time.monotonic() - t0, g.number); break
            except OnefoldError as e:
                print("no", round(time.monotonic() - t0, 1), e.code, e.message[:100])
        else:
            print("NEVER")
        with psycopg.connect(postgres_url, autocommit=True) as o:
            print(o.execute("select pid, state, wait_event, now()-xact_start, left(query, 60) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()").fetchall())
            try:
                o.execute("set lock_timeout=3000")
                o.execute("insert into t values (1, 1, false)")
                print("insert fine")
            except Exception as e: print("insert", e)
    finally:
        frozen[0].go.set(); t.join(); print(errors)
        store.close()


def test_hold(direct, ask, monkeypatch, postgres_url):
    ask("CREATE TABLE t (id bigint PRIMARY KEY)")
    p = direct(rows=pa.record_batch({"id": list(range(20000))}))
    frozen = []
    loading = of_direct._loading
    class Late(Frozen):
        def __iter__(self):
            yield self.pieces[0]; yield self.pieces[1]
            self.there.set(); self.go.wait(60); yield self.pieces[-1]
    def froze(*a):
        q, d = loading(*a)
        if not frozen:
            frozen.append(Late(d.pieces)); d = CopyData(frozen[0])
        return q, d
    monkeypatch.setattr(of_direct, "_loading", froze)
    rec = p.open(); work = p.work(rec)
    t = threading.Thread(target=lambda: pytest.raises(OnefoldError, p.decide, rec, work)); t.start()
    while not frozen: time.sleep(0.01)
    assert frozen[0].there.wait(10); time.sleep(0.5)
    with psycopg.connect(postgres_url, autocommit=True) as o:
        try:
            o.execute("set lock_timeout=3000")
            o.execute("insert into t values (1)")
            print("insert fine")
        except Exception as e: print("insert", e)
    frozen[0].go.set(); t.join()


def shapes(postgres_url, ask, table, rows):
    out = {}
    for d in ("staged", "direct"):
        ask("DROP TABLE IF EXISTS t"); ask(table)
        ask("DROP SCHEMA IF EXISTS onefold_sinks CASCADE")
        p = Direct(postgres_url, {"delivery": d}, rows)
        try:
            p.write(2)
            out[d] = ask("SELECT t::text FROM t ORDER BY 1"), p.steps
        except Exception as e:
            out[d] = (type(e).__name__, getattr(e, "code", None), str(e)[:150])
        p.committer.close(); p.store.close()
    return out


TYPES = pa.record_batch({
    "a": pa.array([1, None], pa.int32()), "b": pa.array(["x", "ok"]), "c": pa.array([["a", None], []], pa.list_(pa.string())),
    "d": pa.array(["12.345", None]).cast(pa.decimal128(12, 3)), "e": pa.array([0, 1], pa.timestamp("us", "UTC")),
    "f": pa.array([1.5, float("nan")]), "g": pa.array([b"\0\xff", b""]), "h": pa.array(['{"a": 1}', None]),
    "i": pa.array([3, 4], pa.time64("us")), "j": pa.array([10, 20], pa.date32()),
})

def test_types(postgres_url, ask):
    ask("CREATE TYPE mood AS ENUM ('x', 'ok')"); ask("CREATE DOMAIN few AS bigint CHECK (value < 100)")
    table = "CREATE TABLE t (z text DEFAULT 'dflt', i time, a few, b mood, c text[], d numeric(14,4), e timestamptz(3), f float8, g bytea, h jsonb, j date, id bigint GENERATED BY DEFAULT AS IDENTITY, twice bigint GENERATED ALWAYS AS (a * 2) STORED)"
    r = shapes(postgres_url, ask, table, TYPES)
    print(r["staged"]); print(r["direct"])


@pytest.mark.parametrize("rows", [
    pa.record_batch({"name": ["a\0b"]}), pa.record_batch({"name": ["bad"]}), pa.record_batch({"name": ["long" * 10]}),
    pa.record_batch({"name": ["dom"]})])
def test_bad(postgres_url, ask, rows):
    ask("CREATE DOMAIN nodom AS text CHECK (value <> 'dom')")
    r = shapes(postgres_url, ask, "CREATE TABLE t (name nodom CHECK (name <> 'bad' and length(name) < 20) )", rows)
    print(); print(r["staged"]); print(r["direct"])


def test_parted(postgres_url, ask):
    r = shapes(postgres_url, ask, "CREATE TABLE t (id bigint, name text) PARTITION BY RANGE (id); CREATE TABLE t1 (name text, x int, id bigint); ALTER TABLE t1 DROP x; ALTER TABLE t ATTACH PARTITION t1 FOR VALUES FROM (0) TO (100)", BATCH)
    print(); print(r["staged"]); print(r["direct"])


def test_deferred(postgres_url, ask):
    r = shapes(postgres_url, ask, "CREATE TABLE t (id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED, name text)", BATCH)
    print(); print(r["staged"]); print(r["direct"])
    ask("CREATE TABLE o (id bigint PRIMARY KEY)")
    r = shapes(postgres_url, ask, "CREATE TABLE t (id bigint REFERENCES o DEFERRABLE INITIALLY DEFERRED, name text)", BATCH)
    print(); print(r["staged"]); print(r["direct"])
