"""Both backends equal plain dicts, through freezes, stores, crashes, and restores with another number of subtasks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from onefold.core.contract import Decided, EpochRecord, EpochState, LedgerEntry
from onefold.core.errors import DataLoss
from onefold.core.positions import Positions, Range
from onefold.engine.key_groups import group_of, key_groups_of_subtask, subtask_of
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.participant import StateCommitter, committable
from onefold.engine.state.rocks import RocksBackend
from onefold.engine.state.sharded_tables import by_sub
from onefold.engine.state.state_backend import Frozen, StateBackend, StateKind, StateSize, StateSpec
from onefold.engine.state.storage import Storage

GROUPS = 16
VALUES = StateSpec("sum", "total", StateKind.VALUE)
LISTS = StateSpec("sum", "events", StateKind.LIST)
MAPS = StateSpec("join", "by name", StateKind.MAP)
OFFSETS = StateSpec("source", "offsets", StateKind.OPERATOR)

KEYS = st.tuples(st.integers(0, 30), st.sampled_from(["a", "b", None]))
SUBS = st.tuples(st.sampled_from(["x", "y", "z", None]))
CONTENT = st.tuples(st.one_of(st.integers(), st.text(max_size=3), st.none()), st.integers(0, 5))
Model = dict[StateSpec, dict[tuple[Any, Any], Any]]
Make = Callable[[Storage, int, Path], StateBackend]


def of_memory(storage: Storage, generation: int, _folder: Path) -> StateBackend:
    return MemoryBackend(storage, generation, GROUPS, copies_max=9, logged_min=12)


def of_rocks(storage: Storage, generation: int, folder: Path) -> StateBackend:
    folder.mkdir(exist_ok=True)
    return RocksBackend(storage, generation, GROUPS, folder=str(folder), changes_max=15, within_bytes_max=3000)


class Flow(RuleBasedStateMachine):
    """Subtasks with a backend each, one plain dict for them all, and the snapshots that are decided."""

    make: Make

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.storage = Storage(f"{self.folder.name}/checkpoints", "flow")
        self.committer = StateCommitter(self.storage, retain=2)
        self.model: Model = {VALUES: {}, LISTS: {}, MAPS: {}}
        self.lists: list[tuple[Any, ...]] = []
        self.frozen: list[tuple[int, list[Frozen], Any]] = []
        self.decided: list[tuple[int, list[str], Any]] = []
        self.zombies: list[list[Frozen]] = []
        self.asleep: list[StateBackend] = []
        self.generation = self.epoch = 0

    @initialize(subtasks=st.integers(1, 3))
    def start(self, subtasks: int) -> None:
        self.begin(subtasks)

    def begin(self, subtasks: int) -> None:
        """A new life of the flow, from the last decided epoch."""
        self.generation += 1
        handles = self.decided[-1][1] if self.decided else []
        self.backends = []
        for number in range(subtasks):
            backend = type(self).make(
                self.storage, self.generation, Path(self.folder.name) / f"{self.generation}-{number}"
            )
            backend.restore(handles, key_groups_of_subtask(number, subtasks, GROUPS))
            self.backends.append(backend)
        self.lists = [item for items in self.backends[0].earlier(OFFSETS) for item in items]
        self.backends[0].operator(OFFSETS, lambda: self.lists)
        self.frozen.clear()
        self.committer.abort(self.committer.leftovers(self.generation - 1))

    def table(self, spec: StateSpec, key: Any) -> Any:
        return self.backends[subtask_of(group_of(key, GROUPS), len(self.backends), GROUPS)].table(spec)

    @rule(key=KEYS, value=CONTENT)
    def put(self, key: Any, value: Any) -> None:
        self.table(VALUES, key).put(key, value)
        self.model[VALUES][key, ()] = value

    @rule(entries=st.dictionaries(KEYS, CONTENT, max_size=20))
    def put_many(self, entries: dict[Any, Any]) -> None:
        for number, backend in enumerate(self.backends):
            mine = [k for k in entries if subtask_of(group_of(k, GROUPS), len(self.backends), GROUPS) == number]
            backend.table(VALUES).put_many(mine, [entries[key] for key in mine])
            assert backend.table(VALUES).get_many(mine) == [entries[key] for key in mine]
        self.model[VALUES].update({(key, ()): value for key, value in entries.items()})

    @rule(key=KEYS, spec=st.sampled_from([VALUES, LISTS, MAPS]))
    def clear(self, key: Any, spec: StateSpec) -> None:
        self.table(spec, key).clear(key)
        self.model[spec] = {at: value for at, value in self.model[spec].items() if at[0] != key}

    @rule(key=KEYS, value=CONTENT)
    def append(self, key: Any, value: Any) -> None:
        last = self.table(LISTS, key).last(key)
        numbers = [sub[0] for at, sub in self.model[LISTS] if at == key]
        assert last == ((max(numbers),) if numbers else None)
        sub = (len(numbers),)
        self.table(LISTS, key).put(key, value, sub)
        self.model[LISTS][key, sub] = value

    @rule(key=KEYS, sub=SUBS, value=CONTENT)
    def put_in_map(self, key: Any, sub: Any, value: Any) -> None:
        self.table(MAPS, key).put(key, value, sub)
        self.model[MAPS][key, sub] = value

    @rule(key=KEYS, sub=SUBS)
    def delete_from_map(self, key: Any, sub: Any) -> None:
        self.table(MAPS, key).delete(key, sub)
        self.model[MAPS].pop((key, sub), None)

    @rule(value=CONTENT)
    def note_in_operator(self, value: Any) -> None:
        self.lists.append(value)

    @rule()
    def freeze(self) -> None:
        self.epoch += 1
        state = {spec: dict(entries) for spec, entries in self.model.items()}, list(self.lists)
        self.frozen.append((self.epoch, [backend.freeze(self.epoch) for backend in self.backends], state))

    @precondition(lambda self: self.frozen)
    @rule(is_late=st.booleans())
    def store_and_decide(self, is_late: bool) -> None:
        epoch, frozen, state = self.frozen.pop(-1 if is_late else 0)
        if is_late:
            for _, earlier, _ in self.frozen:
                for one in earlier:
                    one.release()
            self.frozen.clear()
        works = [committable(one.store()) for one in frozen]
        self.committer.verify(works)
        here = Positions.of({"t/0": epoch})
        record = EpochRecord(
            "flow", epoch, self.generation, EpochState.DECIDED, Range(here, here), epoch, "", 0, "", tuple(works)
        )
        self.committer.commit(Decided(record), works)
        self.committer.write_ledger(LedgerEntry(epoch, self.generation, epoch, here, "store"))
        for one in frozen:
            one.release()
        self.decided.append((epoch, [work.handle for work in works], state))

    @precondition(lambda self: self.frozen)
    @rule()
    def store_in_vain(self) -> None:
        """The driver gives the epoch up: all begin anew."""
        for one in self.frozen[0][1]:
            one.store()
        self.crash(len(self.backends))

    @rule(subtasks=st.integers(1, 3))
    def pause(self, subtasks: int) -> None:
        """The workers are taken for dead, and wake later."""
        self.zombies += [frozen for _, frozen, _ in self.frozen]
        self.asleep += self.backends
        self.begin_again(subtasks)

    @precondition(lambda self: self.zombies)
    @rule()
    def zombie_stores_late(self) -> None:
        for one in self.zombies.pop(0):
            try:
                handle = one.store()
            except DataLoss:  # its earlier files are gone, since newer epochs no longer name them
                continue
            assert committable(handle) in self.committer.leftovers(self.generation)
        self.committer.abort(self.committer.leftovers(self.generation))
        assert self.committer.leftovers(self.generation) == []

    @rule(subtasks=st.integers(1, 3))
    def crash(self, subtasks: int) -> None:
        for backend in self.backends:
            backend.close()
        self.begin_again(subtasks)

    def begin_again(self, subtasks: int) -> None:
        entries, self.lists = self.decided[-1][2] if self.decided else ({VALUES: {}, LISTS: {}, MAPS: {}}, [])
        self.model = {spec: dict(of) for spec, of in entries.items()}
        expected = list(self.lists)
        self.begin(subtasks)
        assert self.lists == expected

    @rule(key=KEYS)
    def read(self, key: Any) -> None:
        for spec in (VALUES, LISTS, MAPS):
            mine = {sub: value for (at, sub), value in self.model[spec].items() if at == key}
            found = list(self.table(spec, key).items(key))
            assert found == by_sub(mine.items())
            assert all(self.table(spec, key).get(key, sub) == value for sub, value in mine.items())

    @invariant()
    def all_entries_are_the_models(self) -> None:
        for spec, entries in self.model.items():
            found = [((key, sub), value) for backend in self.backends for key, sub, value in backend.table(spec).scan()]
            assert len(found) == len(entries)
            assert dict(found) == entries

    @invariant()
    def every_kept_epoch_restores(self) -> None:
        files = set(self.storage.below(""))
        for note in self.committer._notes():
            assert files.issuperset(note.files)
        for epoch, handles, (entries, _) in self.decided[-1:]:
            fresh = type(self).make(self.storage, 0, Path(self.folder.name) / f"look-{epoch}")
            fresh.restore(handles, range(GROUPS))
            for spec, wanted in entries.items():
                assert {(key, sub): value for key, sub, value in fresh.table(spec).scan()} == wanted
            fresh.close()

    def teardown(self) -> None:
        for backend in (*getattr(self, "backends", ()), *self.asleep):
            backend.close()
        self.folder.cleanup()


class MemoryFlow(Flow):
    make = staticmethod(of_memory)


class RocksFlow(Flow):
    make = staticmethod(of_rocks)


BRIEF = settings(max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
TestMemory = pytest.mark.proof(MemoryFlow.TestCase)
TestMemory.settings = BRIEF
TestRocks = pytest.mark.proof(RocksFlow.TestCase)
TestRocks.settings = settings(BRIEF, max_examples=15)


@pytest.mark.parametrize("make", [of_memory, of_rocks])
def test_a_backend_says_how_many_entries_it_has_and_how_large_its_snapshot_is(make: Make, tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "checkpoints"), "flow")
    backend = make(storage, 1, tmp_path / "first")
    backend.restore([], range(GROUPS))
    values, maps = backend.table(VALUES), backend.table(MAPS)
    assert backend.size() == StateSize(0, 0)
    for number in range(20):
        values.put((number, "a"), (number,))
        maps.put((1, "b"), (number,), (f"name {number}",))
    frozen = backend.freeze(1)
    handle = frozen.store()
    size = backend.size()
    assert size.entries == 40 and size.bytes > 0
    backend.close()
    again = make(storage, 2, tmp_path / "second")
    again.restore([handle], range(GROUPS))
    again.table(VALUES), again.table(MAPS)
    assert again.size() == size
    again.close()


@pytest.mark.parametrize("make", [of_memory, of_rocks])
def test_of_what_is_remembered_of_time_a_subtask_gets_what_those_had_that_had_its_key_groups(
    make: Make, tmp_path: Path
) -> None:
    spec, storage = StateSpec("sum", "$clocks", StateKind.CLOCKS), Storage(str(tmp_path), "flow")
    handles = []
    for number in range(2):
        backend = make(storage, 1, tmp_path / f"1-{number}")
        backend.restore([], key_groups_of_subtask(number, 2, GROUPS))
        backend.operator(spec, lambda number=number: [(number,)])  # type: ignore[misc]
        handles.append(backend.freeze(1).store())
        backend.close()
    for subtasks, found in ((2, [[0], [1]]), (3, [[0], [0, 1], [1]]), (1, [[0, 1]])):
        for number, own in enumerate(found):
            backend = make(storage, 2, tmp_path / f"2-{subtasks}-{number}")
            backend.restore(handles[:: -1 if number else 1], key_groups_of_subtask(number, subtasks, GROUPS))
            assert sorted(backend.earlier(spec)) == [[(each,)] for each in own]
            backend.close()
