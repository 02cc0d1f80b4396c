"""What a processor and an operator see of their state: as on Spark, by key, and after a restart by other subtasks."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.core.errors import ConfigError
from onefold.engine.key_groups import key_groups_of_subtask
from onefold.engine.state.handles import KeyedHandle, Timers
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.state_backend import StateKind, StateSpec
from onefold.engine.state.storage import Storage
from onefold.flow import Ttl
from onefold.flow.processing.processor import BytesState, ListState, MapState, ProcessorHandle, ValueState

AT = dt.datetime(2026, 1, 2, 12, tzinfo=dt.UTC)
TIMERS = StateSpec("windows", "event", StateKind.TIMERS)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path), "flow")


@pytest.fixture
def handle(storage: Storage) -> KeyedHandle:
    return KeyedHandle("sum", MemoryBackend(storage, 1))


def test_a_value_is_the_keys_own(handle: KeyedHandle) -> None:
    total: ValueState = handle.getValueState("total", "total decimal(18,2), orders long")
    handle.key = ("ada",)
    assert not total.exists() and total.get() is None
    total.update((5, 1))
    handle.key = ("bob",)
    assert not total.exists()
    handle.key = ("ada",)
    assert total.exists() and total.get() == (5, 1)
    total.clear()
    assert not total.exists()


def test_a_list_is_in_the_order_of_its_elements(handle: KeyedHandle) -> None:
    events: ListState = handle.getListState("events", pa.schema({"at": pa.int64()}))
    handle.key = (1,)
    events.appendValue((3,))
    events.appendList([(1,), (2,)])
    assert list(events.get()) == [(3,), (1,), (2,)]
    events.put([(9,)])
    events.appendValue((8,))
    assert list(events.get()) == [(9,), (8,)]
    events.clear()
    assert not events.exists() and list(events.get()) == []


def test_a_map_is_in_the_order_of_its_keys_and_may_be_changed_on_the_way(handle: KeyedHandle) -> None:
    names: MapState = handle.getMapState("names", "name string, n int", "count long")
    handle.key = (1,)
    for name in ("c", "a", "b"):
        names.updateValue((name, 1), (ord(name),))
    assert list(names.keys()) == [("a", 1), ("b", 1), ("c", 1)]
    assert list(names.values()) == [(97,), (98,), (99,)]
    for key, _ in names.iterator():
        names.removeKey(key)
    assert not names.exists() and not names.containsKey(("a", 1))


def test_the_handle_refuses_what_would_go_wrong_later(handle: KeyedHandle) -> None:
    handle.key = (1,)
    protocol: ProcessorHandle = handle
    total = protocol.getValueState("total", "a map<string, int>, b struct<x: int, y: int>")
    total.update(({}, (1, 2)))
    for wrong in ((1,), [1, 2], (1, 2, 3), None):
        with raises(ConfigError, "state-value-shape"):
            total.update(wrong)  # type: ignore[arg-type]
    for ask in (
        lambda: handle.getListState("total", "a int"),
        lambda: handle.getValueState("$timers", "a int"),
        lambda: handle.getValueState("", "a int"),
    ):
        with raises(ConfigError, "state-name"):
            ask()
    for ttl in ((0, None), (True, None), (1000, Ttl("1 day")), (None, "1 day")):
        with raises(ConfigError, "option-value"):
            handle.getValueState(f"other {ttl}", "a int", *ttl)  # type: ignore[arg-type]
    handle.is_open = False
    with raises(ConfigError, "state-name"):
        handle.getValueState("late", "a int")


@pytest.mark.parametrize("call", ["getValue", "containsKey", "updateValue", "removeKey"])
def test_every_call_takes_a_key_in_any_form_and_refuses_what_is_none(handle: KeyedHandle, call: str) -> None:
    broadcast = handle.getBroadcastState("rules", "price decimal(9,2), at timestamp", "n long")
    keyed = handle.getMapState("prices", "price decimal(9,2), at timestamp", "n long")
    handle.key = (1,)
    berlin = AT.astimezone(ZoneInfo("Europe/Berlin"))
    forms = [(Decimal("1.5"), AT), (Decimal("1.50"), berlin), (Decimal("15E-1"), AT.astimezone(ZoneInfo("UTC")))]
    for state in (keyed, broadcast):
        for key in forms:
            state.updateValue(key, (1,))
            assert [*state.iterator()] == [(forms[0], (1,))]
            if call != "updateValue":
                getattr(state, call)(key)
            assert [str(part) for part in next(state.iterator(), (((), ())))[0]] in ([], ["1.50", str(AT)])
        for wrong in ((1.5, AT), (True, AT), (Decimal("1.505"), AT), (Decimal("1.5"), AT.replace(tzinfo=None)), (1,)):
            with pytest.raises(ConfigError) as refused:
                getattr(state, call)(wrong, *[(1,)] * (call == "updateValue"))
            assert refused.value.code == ("state-value-shape" if len(wrong) == 1 else "state-value-type")


@pytest.mark.parametrize("keys", ["k double", "k struct<a: array<float>>", "k map<string, long>"])
def test_floats_and_maps_are_no_keys_of_maps_at_any_depth(handle: KeyedHandle, keys: str) -> None:
    for ask in (handle.getMapState, handle.getBroadcastState):
        with raises(ConfigError, "map-key-type"):
            ask(ask.__name__, keys, "n long")


def test_values_have_the_form_of_their_schema_and_what_is_none_is_refused(handle: KeyedHandle) -> None:
    handle.key = (1,)
    total = handle.getValueState("total", "total decimal(18,2), orders long, ratio double not null, of struct<a: int>")
    total.update((5, Decimal(1), 2, (7,)))
    assert repr(total.get()) == "(Decimal('5.00'), 1, 2.0, {'a': 7})"
    with raises(ConfigError, "state-value-type", ".orders"):
        total.update((1, "x", 1.0, None))
    for wrong in ((1.5, 1, 1.0, None), (1, True, 1.0, None), (1, 1, None, None), (1, 1 << 63, 1.0, None)):
        with raises(ConfigError, "state-value-type", "'total'", "'sum'"):
            total.update(wrong)
    assert total.get() == (5, 1, 2, {"a": 7})


NESTED = "ids array<long>, of map<string, array<long>>"


def test_only_an_update_changes_a_state(handle: KeyedHandle) -> None:
    value, listed = handle.getValueState("value", NESTED), handle.getListState("list", NESTED)
    mapped, rules = handle.getMapState("map", "k int", NESTED), handle.getBroadcastState("rules", "k int", NESTED)
    items = handle.getOperatorListState("items", NESTED)
    handle.key = (1,)
    mine: Any = ([1], {"a": [1]})
    value.update(mine)
    listed.appendValue(mine)
    mapped.updateValue((1,), mine)
    rules.updateValue((1,), mine)
    items.put([mine])

    def given() -> list[Any]:
        through = [next(iter(state.iterator())) for state in (mapped, rules)]
        lists = [next(iter(state.get())) for state in (listed, items)]
        more = [next(iter(mapped.values())), mapped.getValue((1,)), rules.getValue((1,)), value.get()]
        return [*(found for _, found in through), *lists, *more]

    for ids, of in (mine, *given()):
        ids.append(2)
        of["a"].append(2)
        of["b"] = [2]
    assert given() == [([1], {"a": [1]})] * 8


def test_timers_expire_in_order_and_once(handle: KeyedHandle) -> None:
    timers = handle.timers
    assert timers is not None
    for key, at_ms in ((("b",), 20), (("a",), 20), (("a",), 10), (("c",), 30), ((None,), 20), (("a",), 10)):
        handle.key = key
        handle.registerTimer(at_ms)
    handle.key = ("a",)
    assert list(handle.listTimers()) == [10, 20]
    handle.key = ("c",)
    handle.deleteTimer(30)
    handle.deleteTimer(31)
    handle.registerTimer(25)
    assert timers.next_ms() == 10
    assert timers.pop_expired(9) == []
    assert timers.pop_expired(20) == [(10, ("a",)), (20, (None,)), (20, ("a",)), (20, ("b",))]
    assert timers.pop_expired(20) == []
    assert timers.next_ms() == 25
    assert list(handle.listTimers()) == [25]


def test_timers_are_restored_in_their_order(storage: Storage) -> None:
    backend = MemoryBackend(storage, 1)
    timers = Timers(backend.table(TIMERS))
    for number in range(20):
        timers.register((number,), 100 - number // 2)
    timers.pop_expired(91)
    snapshot = backend.freeze(1).store()
    left = []
    for subtask in range(3):
        other = MemoryBackend(storage, 2)
        other.restore([snapshot], key_groups_of_subtask(subtask, 3))
        left += Timers(other.table(TIMERS)).pop_expired(10**15)
    assert sorted(left) == sorted(timers.pop_expired(10**15))
    assert len(left) == 18


def test_bytes_are_the_keys_own_and_come_back_as_they_were(handle: KeyedHandle) -> None:
    sketch: BytesState = handle.getBytesState("sketch")
    handle.key = (1,)
    assert not sketch.exists() and sketch.get() is None
    sketch.update(bytearray(b"\0x"))
    assert sketch.exists() and sketch.get() == b"\0x"
    sketch.clear()
    assert sketch.get() is None


def test_operators_lists_are_shared_out_or_given_to_all_and_broadcasts_are_everywhere(storage: Storage) -> None:
    handles: list[str] = []
    for subtasks in (2, 3, 1, 1):
        evens: list[list[tuple[int, ...]]] = []
        backends = []
        for subtask in range(subtasks):
            backend = MemoryBackend(storage, 2)
            backend.restore(handles, key_groups_of_subtask(subtask, subtasks))
            backends.append(backend)
            protocol: ProcessorHandle = KeyedHandle("join", backend, subtask=subtask, subtasks=subtasks)
            even = protocol.getOperatorListState("offsets", "n int")
            union = protocol.getOperatorListState("seen", "n int", "union")
            rules = protocol.getBroadcastState("rules", "id int", "text string")
            assert list(union.get()) == ([(0,)] if handles else [])
            assert list(rules.iterator()) == ([((1,), ("one",))] if handles else [])
            evens.append(list(even.get()))
            even.clear()
            for number in range(7):
                if number * subtasks // 7 == subtask:
                    even.appendValue((number,))
            union.put([(0,)] if subtask == 0 else [])
            rules.updateValue((1,), ("one",))
            rules.updateValue((2,), ("two",))
            rules.removeKey((2,))
            assert rules.containsKey((1,)) and rules.getValue((2,)) is None
            with raises(ConfigError, "state-value-shape"):
                even.appendValue((1, 2))
        assert [item for items in evens for item in items] == ([(number,) for number in range(7)] if handles else [])
        assert max(map(len, evens)) - min(map(len, evens)) <= 1
        handles = [backend.freeze(1).store() for backend in backends]
