"""Random programs, and what each of their steps answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.state_law.samples import KEYS, VALUES, Sample
from harness.state_law.worlds import World
from hypothesis import strategies as st

from onefold.core.errors import ConfigError

__all__ = ["SHARED", "Program", "Step", "answers", "programs"]

Step = tuple[Any, ...]  # a name, and arguments
Program = tuple[tuple[str, str], list[Step]]  # the schemas of a map's keys and of all values, and the steps

SHARED = frozenset(("put items", "append item", "put rule", "rule", "drop rule"))
UP_TO_MS = 5


def programs(steps_max: int) -> st.SearchStrategy[Program]:
    schemas = st.tuples(st.sampled_from(sorted(KEYS)), st.sampled_from(sorted(VALUES)))
    return schemas.flatmap(
        lambda of: st.tuples(st.just(of), st.lists(_step(*of), min_size=steps_max // 2, max_size=steps_max))
    )


def _step(key_schema: str, schema: str) -> st.SearchStrategy[Step]:
    subs, values, some = st.sampled_from(KEYS[key_schema]), st.sampled_from(VALUES[schema]), st.just
    keys, times = st.tuples(st.integers(0, 2)), st.integers(0, UP_TO_MS)
    few = st.lists(values, max_size=3)
    of_key = [
        st.tuples(some("update"), keys, values),
        st.tuples(some("put"), keys, few),
        st.tuples(some("append"), keys, few),
        st.tuples(some("put entry"), keys, subs, values),
        *(st.tuples(some(name), keys, subs) for name in ("entry", "has entry", "drop entry")),
        st.tuples(some("put bytes"), keys, st.binary(max_size=3)),
        *(st.tuples(some(name), keys, times) for name in ("register", "delete")),
        st.tuples(st.sampled_from(("clear value", "clear list", "clear map")), keys),
    ]
    shared = [
        st.tuples(some("put items"), few),
        st.tuples(some("append item"), values),
        st.tuples(some("put rule"), subs, values),
        *(st.tuples(some(name), subs) for name in ("rule", "drop rule")),
    ]
    ends = [st.tuples(some("cut")), st.tuples(some("restart"), st.integers(1, 3)), st.tuples(some("fire"), times)]
    return st.one_of(*of_key, *of_key, *shared, *ends, *ends, *ends)


def answers(world: World, steps: Sequence[Step]) -> list[Any]:
    """As text, so that a scale, a zone and a sign of zero count."""
    return [repr(_answer(world, *step)) for step in steps]


def _answer(world: World, name: str, *arguments: Any) -> Any:
    if name in ("cut", "restart"):
        return getattr(world, name)(*arguments)
    if name == "fire":
        return sorted(world.fire(*arguments))
    states = world.everyone() if name in SHARED else world.at(arguments[0])
    try:
        answer = (
            _of_all(world, states, name, *arguments) if name in SHARED else _of_key(world, states, name, *arguments[1:])
        )
    except ConfigError as error:
        answer = error.code
    return answer, _look_at_all(states) if name in SHARED else _look(states)


def _of_key(world: World, states: Any, name: str, *arguments: Any) -> Any:
    match name, *arguments:
        case "update", value:
            _given(world, value, states.value.update)
        case "put", values:
            _given(world, values, states.list.put)
        case "append", values:
            _given(world, values, states.list.appendList)
        case "put entry", key, value:
            _given(world, value, lambda of: states.map.updateValue(world.take(key), of))
        case "entry", key:
            return _told(states.map.getValue(world.take(key)))
        case "has entry", key:
            return states.map.containsKey(world.take(key))
        case "drop entry", key:
            states.map.removeKey(world.take(key))
        case "put bytes", content:
            states.bytes.update(content)
        case "register", at_ms:
            states.handle.registerTimer(at_ms)
        case "delete", at_ms:
            states.handle.deleteTimer(at_ms)
        case _:
            getattr(states, name.removeprefix("clear ")).clear()
    return None


def _look(states: Any) -> Any:
    """All that a key has."""
    found = [states.value.get(), *states.list.get()], _ordered(states.map.iterator()), states.bytes.get()
    exist = [state.exists() for state in (states.value, states.list, states.map, states.bytes)]
    return _told((found, exist, [*states.handle.listTimers()]))


def _look_at_all(everyone: list[Any]) -> Any:
    items = sorted((item for states in everyone for item in states.items.get()), key=repr)
    return _told(items), _one([_told(_ordered(states.rules.iterator())) for states in everyone])


def _of_all(world: World, everyone: list[Any], name: str, *arguments: Any) -> Any:
    match name, *arguments:
        case "put items", values:
            for states in everyone:
                _given(world, values if states is everyone[0] else [], states.items.put)
        case "append item", value:
            for states in everyone[:1]:
                _given(world, value, states.items.appendValue)
        case "put rule", key, value:
            for states in everyone:
                _given(world, value, lambda of, rules=states.rules: rules.updateValue(world.take(key), of))
        case "rule", key:
            return _one(
                [_told((s.rules.getValue(world.take(key)), s.rules.containsKey(world.take(key)))) for s in everyone]
            )
        case _, key:
            for states in everyone:
                states.rules.removeKey(world.take(key))
    return None


def _given(world: World, what: Sample | list[Sample], to: Any) -> None:
    """What a processor has given it goes on to change."""
    value = [world.take(each) for each in what] if isinstance(what, list) else world.take(what)
    to(value)
    _change(value)


def _told(found: Any) -> Any:
    """What a processor gets it goes on to change."""
    text = repr(found)
    _change(found)
    return text


def _change(value: Any) -> None:
    match value:
        case list():
            for part in value:
                _change(part)
            value.append("changed")
        case dict():
            for part in value.values():
                _change(part)
            value["changed"] = "changed"
        case tuple():
            for part in value:
                _change(part)


def _ordered(entries: Any) -> list[Any]:
    """The model has no order of its own."""
    return sorted(entries, key=repr)


def _one(told: list[Any]) -> Any:
    """All subtasks have them alike."""
    assert len(set(told)) <= 1, told
    return told[0] if told else None
