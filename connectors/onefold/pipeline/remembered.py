"""What a pipeline's store remembers of a flow in Python: its sources and its sinks, as the tables of a file.

With them commands for a stopped pipeline work from its file and its store, without importing the flow. Others may write
to the store: so it says nothing of where a command connects and how, or of what code it runs. Addresses and settings of
clients, with the secrets that are in them, are settings of the file, and the store has their names. What tables cannot
say so, and exactly, is not remembered at all.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from onefold.core import ConfigError
from onefold.flow import Flow
from onefold.flow.graph.nodes import Edge, Graph, Node
from onefold.flow.graph.operators import Elided, Operator, Reading, Writing
from onefold.pipeline.contents import FileFlow
from onefold.pipeline.toml_models import SINKS, SOURCES, file_table

UNREADABLE = (AttributeError, LookupError, TypeError, ValueError)

Settings = Mapping[str, tuple[Any, bool]]  # of a file, by their places; and whether a secret is in it

_OF_FILE = frozenset({"bootstrap_servers", "client_config", "path", "schema_registry", "servers", "url"})
_REFERENCE = re.compile(r"\$\{(settings\.[^}]+)\}")
_LONG = 8  # letters of a secret that stands within another text by no chance
_NO_COLUMNS = pa.schema([])


class RememberedFlow(FileFlow):
    """The ends of a flow, and whether it keeps state between them. It cannot be run."""

    def __init__(self, name: str, text: str, settings: Settings) -> None:
        """Raises `UNREADABLE` for a text of another version, or with settings that the file does not have, and
        ConfigError where they are none for its sources and sinks."""
        found = json.loads(text)
        sources = [_filled(table, settings) for table in found["sources"]]
        sinks = [_filled(table, settings) for table in found["sinks"]]
        letters = [table["dead_letters"] for table in sources if "dead_letters" in table]
        model = file_table([each["kind"] for each in sources], [each["kind"] for each in (*sinks, *letters)])
        made = model.model_validate({"sources": sources, "sinks": sinks}).make(None)
        super().__init__(name, made.sources, (), made.sinks)
        self._keeps_state = bool(found["keeps_state"])

    @property
    def is_settled(self) -> bool:
        return False  # its columns are not known

    def graph(self) -> Graph:
        nodes: list[Node] = []

        def add(operator: Operator, inputs: Sequence[Edge], uid: str | None = None) -> Edge:
            schema = None if isinstance(operator, Writing) else _NO_COLUMNS
            sides = (("bad", _NO_COLUMNS),) if isinstance(operator, Reading) else ()
            nodes.append(Node(len(nodes), operator, tuple(inputs), schema, sides, uid))
            return Edge(nodes[-1].number)

        read = [add(Reading(each.source), (), each.uid) for each in self._read]
        rows = add(Elided(), read, "elided") if self._keeps_state else read[0]
        for sink in self._written:
            add(Writing(sink), [rows])
        for edge, each in zip(read, self._read, strict=True):
            if each.dead_letters is not None:
                add(Writing(each.dead_letters, is_letters=True), [dataclasses.replace(edge, output="bad")])
        return Graph(self.name, tuple(nodes))


def settings_of(given: Mapping[str, Any], values: Mapping[str, Any]) -> Settings:
    """Those of a file, `values` with its secrets in their places."""

    def of(place: str, text: Any, value: Any) -> Iterator[tuple[str, tuple[Any, bool]]]:
        yield place, (value, text != value)
        if isinstance(value, dict):
            for name, one in value.items():
                yield from of(f"{place}.{name}", text.get(name), one)

    return dict(of("settings", given.get("settings", {}), values.get("settings", {})))


def endpoints(flow: Flow, settings: Settings) -> str | None:
    """The text from which a `RememberedFlow` is made; None where it would be another one."""
    graph = flow.graph()
    letters = {node.inputs[0].source: of.sink for node, of in graph.writings() if of.is_letters}
    try:
        sources = []
        for node, reading in graph.readings():
            table = _table(reading.source, SOURCES, settings) | {"uid": node.uid}
            if node.number in letters:
                table["dead_letters"] = _table(letters[node.number], SINKS, settings)
            sources.append(table)
        sinks = [_table(of.sink, SINKS, settings) for _, of in graph.writings() if not of.is_letters]
    except _NotSaid:
        return None
    text = json.dumps({"sources": sources, "sinks": sinks, "keeps_state": graph.keeps_state})
    return text if _says(text, flow, settings) else None


def _says(text: str, flow: Flow, settings: Settings) -> bool:
    try:
        made = RememberedFlow(flow.name, text, settings)
    except (ConfigError, *UNREADABLE):
        return False
    return made.sources() == flow.sources() and [*map(_options, made.sinks())] == [*map(_options, flow.sinks())]


def _filled(table: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """The table with the file's settings, which nothing but their names may stand for."""
    found = dict(table)
    for name in _OF_FILE & table.keys():
        if (reference := _REFERENCE.fullmatch(table[name])) is None:
            raise ValueError(f"{name} is no setting of the file")
        found[name], _ = settings[reference[1]]
    if "dead_letters" in table:
        found["dead_letters"] = _filled(table["dead_letters"], settings)
    return found


class _NotSaid(Exception):
    """A table cannot say it, or may not."""


def _options(made: object) -> object:
    return getattr(made, "given", made)


def _table(made: object, kinds: Mapping[str, tuple[str, str]], settings: Settings) -> dict[str, Any]:
    called = {of.partition(":")[2]: kind for kind, (_, of) in kinds.items()}
    if type(made).__name__ not in called or not type(made).__module__.startswith("onefold."):
        raise _NotSaid
    found: dict[str, Any] = {"kind": called[type(made).__name__]}
    for name, value in _given(_options(made)):
        found[name] = _reference(value, settings) if name in _OF_FILE else _plain(value, settings)
    return found


def _reference(value: object, settings: Settings) -> str:
    for place, (setting, _) in settings.items():
        if setting == value:
            return f"${{{place}}}"
    raise _NotSaid


def _given(options: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a dataclass that are not as by default, and that a table can have."""
    for field in dataclasses.fields(options):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if field.init and field.metadata.get("toml", True) and getattr(options, field.name) != default:
            yield field.name, getattr(options, field.name)


def _plain(value: Any, settings: Settings) -> Any:
    match value:
        case bool() | int() | float():
            return value
        case str() if not _has_secret(value, settings):
            return value
        case Mapping():
            return {key: _plain(one, settings) for key, one in value.items()}
        case list() | tuple():
            return [_plain(one, settings) for one in value]
        case _ if dataclasses.is_dataclass(value):
            return {key: _plain(one, settings) for key, one in _given(value)}
        case _:
            raise _NotSaid


def _has_secret(text: str, settings: Settings) -> bool:
    secrets = [value for value, is_secret in settings.values() if is_secret and isinstance(value, str)]
    return any(text == secret or (len(secret) >= _LONG and secret in text) for secret in secrets)
