"""Which entries have to change where a flow keeps something else than its snapshots have; or why that cannot be."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from onefold.core.values.exact import Mismatch, canonical
from onefold.engine.state.schemas.description import AggregateDescription, OperatorDescription, StateDescription
from onefold.engine.state.schemas.migration import ColumnMigration, ExpiryMigration, Place
from onefold.engine.state.schemas.widening import is_same_form, is_same_key, is_widened
from onefold.engine.state.state_backend import EXPIRY, TIMES, Migration, Migrations, StateKind, StateSpec
from onefold.flow.processing.evolution import Evolution


def migrations(
    before: OperatorDescription, now: OperatorDescription, evolution: Evolution, deleted: Collection[str] = ()
) -> Migrations:
    """What becomes of each state of `before` that does not stay as it is. States that are `deleted` are dropped.

    Raises Unlike where that cannot be, or where only the user knows what is meant."""
    comparison = _Comparison(before, now, evolution)
    comparison.check()
    return dict(comparison.changes(deleted))


def times_changed(before: OperatorDescription, now: OperatorDescription, evolution: Evolution) -> list[str]:
    """The states that have a time to live and had none, or the other way round."""
    was, is_ = ({state.name for state in of.states if _is_timed(state)} for of in (before, now))
    names = _Comparison(before, now, evolution).names()
    return [name for earlier, name in names.items() if (earlier in was) != (name in is_)]


@dataclass(eq=False)
class Unlike(Exception):
    """State cannot become what is kept now: `what` names both, `remedy` what an Evolution has to say for that; it is
    empty where nothing helps."""

    what: str
    remedy: str


class _Comparison:
    def __init__(self, before: OperatorDescription, now: OperatorDescription, evolution: Evolution) -> None:
        self._before, self._now, self._evolution, self._uid = before, now, evolution, now.uid
        self._renamed: dict[str, str] = {}  # columns of aggregates' states and results, from the earlier names
        self._gone: set[str] = set()  # of them, those of aggregates there are no more
        self._begins: dict[str, object] = {}  # and those of new ones

    def check(self) -> None:
        """All but the states' columns."""
        before, now = self._before, self._now
        if before.kind != now.kind:
            raise self._refused(f"is of kind {now.kind!r}", f"kind {before.kind!r}")
        names = self._names(before.key, now.key)
        if names != now.key.names or not all(map(is_same_key, before.key.types, now.key.types)):
            raise self._refused(f"keeps state by {said(now.key)}", f"keys {said(before.key)}")
        for name in sorted(before.settings.keys() | now.settings.keys()):
            was, is_ = before.settings.get(name, "none"), now.settings.get(name, "none")
            if was != is_:
                raise self._refused(f"has {name} {is_}", f"{name} {was}")
        self._pair()

    def changes(self, deleted: Collection[str]) -> Iterator[tuple[StateSpec, Migration]]:
        states, names = ({state.name: state for state in of.states} for of in (self._now, self._before))
        for was in self._before.states:
            spec = was.spec(self._before.uid)
            name = self._moved(self._evolution.states, f"{self._uid}/", was.name, names, states)
            if was.name in deleted or (name not in states and f"{self._uid}/{name}" in self._evolution.drops):
                yield spec, ColumnMigration(None, was.value)
            elif name not in states and was.kind == "clocks":
                continue  # nothing goes by it any more
            elif name not in states:
                raise self._refused(
                    f"has the states {', '.join(name for name in states if not name.startswith('$')) or 'none'}",
                    f"the {was.kind} {name!r}",
                    f"say drops={{'{self._uid}/{name}'}} if it is to go, or states={{'{self._uid}/{name}': ...}} if"
                    " it is called otherwise now",
                )
            else:
                target, places = states[name].spec(self._uid), self._places(was, states[name])
                if places is not None or target != spec:
                    yield spec, ColumnMigration(target, was.value, places, was.kind == "broadcast")
        renamed, uid = self.names(), self._before.uid
        if any(map(_is_timed, self._before.states)) and (uid != self._uid or any(a != b for a, b in renamed.items())):
            before, now = (StateSpec(of, EXPIRY, StateKind.CLOCKS) for of in (uid, self._uid))
            yield before, ExpiryMigration(now, pa.schema([]), names=renamed)

    def names(self) -> dict[str, str]:
        """Of the states that go on, what they are called now."""
        before, now = ([state.name for state in of.states] for of in (self._before, self._now))
        moved = {name: self._moved(self._evolution.states, f"{self._uid}/", name, before, now) for name in before}
        return {name: found for name, found in moved.items() if found in now}

    # aggregates

    def _pair(self) -> None:
        """Aggregates go on under their names, under those that `columns` gives, or as others that keep the same."""
        left = {each.name: each for each in self._now.aggregates}
        names = {each.name for each in self._before.aggregates}
        pairs, rest = [], []
        for was in self._before.aggregates:
            name = self._moved(self._evolution.columns, f"{self._uid}.", was.name, names, left)
            of = _function if f"{self._uid}.{was.name}" in self._evolution.columns else _keeps
            if name in left and of(left[name]) == of(was):
                pairs.append((was, left.pop(name)))
            else:
                rest.append(was)
        for was in rest:
            if same := [each.name for each in left.values() if each.keeps == was.keeps]:
                pairs.append((was, left.pop(same[0])))
            elif f"{self._uid}.{was.name}" in self._evolution.drops:
                self._gone |= {was.name, *was.columns}
            else:
                raise self._refused(
                    f"keeps {_told(self._now.aggregates)}",
                    _told(self._before.aggregates),
                    f"say drops={{'{self._uid}.{was.name}'}} if that is to go, or columns={{'{self._uid}.{was.name}':"
                    " 'its name'} if it is called otherwise now, or is of a column that is",
                )
        for was, is_ in pairs:
            self._renamed |= {was.name: is_.name, **dict(zip(was.columns, is_.columns, strict=True))}
        for new in left.values():
            self._begin(new)

    def _begin(self, new: AggregateDescription) -> None:
        name = f"{self._uid}.{new.name}"
        if name not in self._evolution.begins:
            raise self._refused(
                f"keeps {_told(self._now.aggregates)}",
                _told(self._before.aggregates),
                f"say what {', '.join(new.columns)} of earlier rows is, begins={{{name!r}: None}} for that of no rows",
            )
        begins = self._evolution.begins[name]
        values = begins if isinstance(begins, tuple) else (begins,) * (len(new.columns) if begins is None else 1)
        if len(values) != len(new.columns):
            remedy = f"begin {name!r} with a tuple of {', '.join(new.columns)}"
            raise self._refused(f"begins it with {begins!r:.100}", "other aggregates", remedy)
        self._begins |= {new.name: None, **dict(zip(new.columns, values, strict=True))}

    # states

    def _places(self, was: StateDescription, is_: StateDescription) -> tuple[Place, ...] | None:
        """Of the columns of its values; None where they stay as they are."""
        if was.kind != is_.kind:
            raise self._refused(f"has {is_.name!r} as a {is_.kind}", f"the {was.kind} {was.name!r}")
        if len(was.key) != len(is_.key) or not all(map(is_same_key, was.key.types, is_.key.types)):
            raise self._refused(f"has the map {is_.name!r} by {said(is_.key)}", f"a map by {said(was.key)}")
        is_ = replace(is_, value=_timed_alike(was.value, is_.value))
        names = self._names(was.value, is_.value)
        at = {name: number for number, name in enumerate(names)}
        new = [field for field in is_.value if field.name not in at and not self._begin_of(field)]
        gone = [was.value.field(at[name]) for name in names if name not in is_.value.names and not self._is_gone(name)]
        if new and (gone or not all(field.nullable for field in new)):
            raise self._refused(
                f"has {said(new)} in {is_.name!r}",
                f"{said(gone) if gone else said(was.value)} there",
                f"say columns={{'{self._uid}.{gone[0].name if gone else 'its name'}': {new[0].name!r}}} if that is"
                f" another name; begins={{'{self._uid}.{new[0].name}': ...}} for what entries of before have in it; or"
                " drops= for what is gone",
            )
        places = tuple(self._place(was, is_, field, at.get(field.name)) for field in is_.value)
        is_same = len(places) == len(was.value) and all(
            place.at == number and is_same_form(was.value.field(number).type, place.field.type)
            for number, place in enumerate(places)
        )
        return None if is_same else places

    def _place(self, was: StateDescription, is_: StateDescription, field: pa.Field, at: int | None) -> Place:
        if at is None:
            begins = next(iter(self._begin_of(field)), None)
            try:
                if begins is None and not field.nullable:
                    raise Mismatch("null", "the column is NOT NULL")
                return Place(field, None, None, canonical(field.type)(begins))
            except Mismatch as error:
                now = f"begins a column of {is_.name!r} with what is none of {said([field])}: {error}"
                raise self._refused(now, "other columns") from None
        earlier = was.value.field(at)
        if not is_widened(earlier.type, field.type) or (earlier.nullable and not field.nullable):
            there = f"{said([earlier])} there, of which not all values are values of that"
            raise self._refused(f"has {said([field])} in {is_.name!r}", there)
        return Place(field, at, earlier.type)

    def _names(self, before: pa.Schema, now: pa.Schema) -> list[str]:
        """What the columns of before are called now."""
        told, prefix = self._evolution.columns, f"{self._uid}."
        return [
            self._renamed.get(name) or self._moved(told, prefix, name, before.names, now.names) for name in before.names
        ]

    def _begin_of(self, field: pa.Field) -> list[object]:
        """What entries of before have in a new column, where that is said."""
        if field.name in self._begins:
            return [self._begins[field.name]]
        name = f"{self._uid}.{field.name}"
        return [self._evolution.begins[name]] if name in self._evolution.begins else []

    def _is_gone(self, name: str) -> bool:
        return name in self._gone or f"{self._uid}.{name}" in self._evolution.drops

    @staticmethod
    def _moved(told: Mapping[str, str], prefix: str, name: str, before: Collection[str], now: Collection[str]) -> str:
        """What is called so now. What is told may be of an earlier start, or of another state."""
        found = told.get(f"{prefix}{name}", name)
        return found if found in now and found not in before else name

    def _refused(self, now: str, before: str, remedy: str = "") -> Unlike:
        return Unlike(f"the operator {self._uid!r} {now}, and its state is of {before}", remedy)


def _is_timed(state: StateDescription) -> bool:
    return TIMES in state.value.names


def _timed_alike(before: pa.Schema, now: pa.Schema) -> pa.Schema:
    """With a time in front where there was one: it comes and goes with `Expiry`."""
    times = [field for field in before if field.name == TIMES]
    return pa.schema([*times, *(field for field in now if field.name != TIMES)])


def _keeps(aggregate: AggregateDescription) -> str:
    return aggregate.keeps


def _function(aggregate: AggregateDescription) -> str:
    return aggregate.keeps.partition("(")[0]


def _told(aggregates: Iterable[AggregateDescription]) -> str:
    return ", ".join(f"{each.name}={each.keeps}" for each in aggregates)


def said(fields: pa.Schema | list[pa.Field]) -> str:
    """The columns, for people."""
    return (
        ", ".join(f"{field.name} {field.type}{'' if field.nullable else ' NOT NULL'}" for field in fields) or "no key"
    )
