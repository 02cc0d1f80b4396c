"""Few dead entries beside those that live, whatever comes and goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from onefold.core.aggregates import Accumulation, count
from onefold.engine.key_groups import key_groups_of_subtask
from onefold.engine.state.expiring import Expiry
from onefold.engine.state.state_backend import StateKind, StateSpec
from onefold.engine.state.storage import Storage
from onefold.engine.workers.backends import made_backend
from onefold.flow import Ttl

GROUPS = 8
NEW = 1_000  # keys in an epoch
EPOCH_S = 5
ALIVE = NEW * 60 // EPOCH_S
KEYS = pa.schema([("k", pa.int64())])


@pytest.mark.parametrize("kind", [StateKind.VALUE, StateKind.ROWS])
@pytest.mark.parametrize("backend_name", ["memory", pytest.param("rocksdb", marks=pytest.mark.slow)])
def test_dead_entries_are_a_quarter_of_those_that_live(backend_name: str, kind: StateKind, tmp_path: Path) -> None:
    (tmp_path / "database").mkdir()
    storage = Storage(str(tmp_path), "flow")
    backend: Any = made_backend(backend_name, storage, 1, GROUPS, str(tmp_path / "database"))
    backend.restore([], range(GROUPS))
    expiry, spec, ttl = Expiry("u", backend), StateSpec("u", "totals", kind), Ttl("1 minute")
    accumulation = Accumulation(KEYS, ("k",), [("n", count())])
    if kind is StateKind.VALUE:
        table = expiry.table(spec, ttl)
    else:
        rows = expiry.rows("totals", accumulation.state_schema, 1, ttl)

    def there() -> int:
        return backend.size().entries if backend_name == "memory" else sum(1 for _ in backend.table(spec).scan())

    most = 0
    for epoch in range(1, 61):
        expiry.begin(epoch * EPOCH_S * 1_000, None)
        keys = range(epoch * NEW, epoch * NEW + NEW)
        if kind is StateKind.VALUE:
            table.put_many([(key,) for key in keys], [(key,) for key in keys])
        else:
            batch = pa.RecordBatch.from_arrays([pa.array(keys)], schema=KEYS)
            rows.fold(accumulation.states(batch), accumulation)
        expiry.sweep()
        backend.freeze(epoch).store()
        most = max(most, there())
    assert ALIVE < most <= ALIVE * 5 / 4
    backend.close()


@pytest.mark.parametrize("known", [[True, False], [False, True], [True, True]])
def test_what_subtasks_wrote_lives_and_expires_alike_in_the_one_that_takes_both_over(
    known: list[bool], tmp_path: Path
) -> None:
    """Also where one of them did not know the time yet."""
    storage, spec, ttl = (
        Storage(str(tmp_path), "flow"),
        StateSpec("u", "totals", StateKind.VALUE),
        Ttl("1 minute", clock="event"),
    )
    handles = []
    for index, knows in enumerate(known):
        backend: Any = made_backend("memory", storage, 1, GROUPS, None)
        backend.restore([], key_groups_of_subtask(index, 2, GROUPS))
        expiry = Expiry("u", backend)
        table = expiry.table(spec, ttl)
        expiry.begin(0, 1_000 if knows else None)
        table.put_many([(key,) for key in range(100 * index, 100 * index + 100)], [(1,)] * 100)
        handles.append(backend.freeze(1).store())
    joined: Any = made_backend("memory", storage, 2, GROUPS, None)
    joined.restore(handles, range(GROUPS))
    expiry = Expiry("u", joined)
    expiry.table(spec, ttl)
    expiry.restored()
    for now_ms in (2_000, 30_000):
        expiry.begin(0, now_ms)
        expiry.sweep()
        assert joined.size().entries == 200
    for now_ms in (63_000, 80_000):
        expiry.begin(0, now_ms)
        expiry.sweep()
    assert joined.size().entries == 0


@pytest.mark.parametrize("first", [True, False])
def test_what_has_expired_stays_away_without_a_time_to_live_whoever_takes_over_from_whom(
    first: bool, tmp_path: Path
) -> None:
    """One of them had nothing."""
    storage, spec = Storage(str(tmp_path), "flow"), StateSpec("u", "totals", StateKind.VALUE)
    handles = []
    for index, has_some in enumerate([first, not first]):
        backend: Any = made_backend("memory", storage, 1, GROUPS, None)
        backend.restore([], key_groups_of_subtask(index, 2, GROUPS))
        expiry = Expiry("u", backend)
        table = expiry.table(spec, Ttl("1 minute"))
        for now_ms in range(0, 62_000, 2_000):
            expiry.begin(now_ms, None)
            if has_some and now_ms in (0, 60_000):
                table.put_many([(key,) for key in range(now_ms, now_ms + 1_000)], [(1,)] * 1_000)
            expiry.sweep()
        assert backend.size().entries > 1_000 or not has_some, "some have expired, and are there"
        handles.append(backend.freeze(1).store())
    joined: Any = made_backend("memory", storage, 2, GROUPS, None)
    joined.restore(handles, range(GROUPS))
    assert {key for key, _, _ in Expiry("u", joined).table(spec, None).scan()} == {
        (key,) for key in range(60_000, 61_000)
    }


def test_clocks_are_restored_of_the_subtasks_that_had_the_key_groups_and_no_others(tmp_path: Path) -> None:
    """Where barriers overtake, each stands in an epoch of its own."""
    storage, spec = Storage(str(tmp_path), "flow"), StateSpec("u", "$clocks", StateKind.CLOCKS)
    of_user = StateSpec("u", "buffer", StateKind.OPERATOR)

    def restored(handles: list[str], workers: int) -> tuple[list[str], list[list[Any]]]:
        stored, found = [], []
        for index in range(workers):
            backend: Any = made_backend("memory", storage, 1, GROUPS, None)
            backend.restore(handles, key_groups_of_subtask(index, workers, GROUPS))
            found.append([value for of in backend.earlier(spec) for (value,) in of])
            assert len(backend.earlier(of_user)) == len(handles), "which are shared out otherwise"
            backend.operator(spec, lambda index=index: [(f"{index} of {workers}",)])
            backend.operator(of_user, lambda: [(1,)])
            stored.append(backend.freeze(workers).store())
        return stored, found

    handles, found = restored([], 2)
    assert found == [[], []]
    assert restored(handles, 2)[1] == [["0 of 2"], ["1 of 2"]]
    handles, found = restored(handles, 3)
    assert found == [["0 of 2"], ["0 of 2", "1 of 2"], ["1 of 2"]]
    assert restored(handles, 1)[1] == [["0 of 3", "1 of 3", "2 of 3"]]
