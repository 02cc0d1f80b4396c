"""What a pipeline's store remembers of a flow in Python: its sources and its sinks, as the tables of a file.

With them commands for a stopped pipeline work from its file and its store, without importing the flow. What tables
cannot say exactly, such as a function or a password that is none of the file's settings, is not remembered at all.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa

from onefold.core import ConfigError
from onefold.flow import Flow
from onefold.flow.graph import Edge, Elided, Graph, Node, Operator, Reading, Writing
from onefold.pipeline.secrets import filled
from onefold.pipeline.steps import FileFlow
from onefold.pipeline.toml_models import SINKS, SOURCES, file_table

__all__ = ["RememberedFlow", "endpoints", "secrets_of"]

_URL = re.compile(r"([\w+.-]+://[^/@?#:]*):([^/@?#]*)@")
_SECRET = re.compile(r"pass|secret|token|jaas|credential|api.?key|user\.info|\.pem", re.IGNORECASE)
_PAIR = re.compile(rf"({_SECRET.pattern})\w*\s*=", re.IGNORECASE)  # in a URL, or in a text of several settings
_LONG = 8  # letters of a secret that stands within another text by no chance
_NO_COLUMNS = pa.schema([])


class RememberedFlow(FileFlow):
    """The ends of a flow, and whether it keeps state between them. It cannot be run."""

    def __init__(self, name: str, text: str, secrets: Mapping[str, str], directory: Path) -> None:
        """Raises ConfigError where the text needs a secret that is not known."""
        found = json.loads(text)
        tables = filled({key: found[key] for key in ("sources", "sinks")}, directory, secrets)
        kinds = [
            *(table["kind"] for table in tables["sinks"]),
            *(table["dead_letters"]["kind"] for table in tables["sources"] if "dead_letters" in table),
        ]
        made = file_table([table["kind"] for table in tables["sources"]], kinds).model_validate(tables).make(directory)
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


def secrets_of(given: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, str]:
    """The settings of a file that refer to a secret, by their places; `values` has those in their place."""

    def of(place: str, text: Any, value: Any) -> Iterator[tuple[str, str]]:
        match value:
            case dict():
                for name, one in value.items():
                    yield from of(f"{place}.{name}", text.get(name), one)
            case list():
                for at, one in enumerate(value):
                    yield from of(f"{place}[{at}]", text[at], one)
            case str() if text != value and value:
                yield place, value

    return dict(of("settings", given.get("settings", {}), values.get("settings", {})))


def endpoints(flow: Flow, secrets: Mapping[str, str], directory: Path) -> str | None:
    """The text from which a `RememberedFlow` is made; None where it would be another one."""
    graph = flow.graph()
    letters = {node.inputs[0].source: of.sink for node, of in graph.writings() if of.is_letters}
    try:
        sources = []
        for node, reading in graph.readings():
            table = _table(reading.source, SOURCES, secrets) | {"uid": node.uid}
            if node.number in letters:
                table["dead_letters"] = _table(letters[node.number], SINKS, secrets)
            sources.append(table)
        sinks = [_table(of.sink, SINKS, secrets) for _, of in graph.writings() if not of.is_letters]
    except _NotSaid:
        return None
    keeps_state = any(node.keeps_state for node in graph.nodes)
    text = json.dumps({"sources": sources, "sinks": sinks, "keeps_state": keeps_state})
    return text if _says(text, flow, secrets, directory) else None


def _says(text: str, flow: Flow, secrets: Mapping[str, str], directory: Path) -> bool:
    """Whether the flow that it makes has the same ends."""
    try:
        made = RememberedFlow(flow.name, text, secrets, directory)
    except (ConfigError, ValueError):  # of pydantic, too
        return False
    return made.sources() == flow.sources() and [*map(_options, made.sinks())] == [*map(_options, flow.sinks())]


class _NotSaid(Exception):
    """A table cannot say it."""


def _options(made: object) -> object:
    return getattr(made, "given", made)


def _table(made: object, kinds: Mapping[str, tuple[str, str]], secrets: Mapping[str, str]) -> dict[str, Any]:
    called = {of.partition(":")[2]: kind for kind, (_, of) in kinds.items()}
    if type(made).__name__ not in called or not type(made).__module__.startswith("onefold."):
        raise _NotSaid
    return {"kind": called[type(made).__name__], **_fields(_options(made), secrets)}


def _fields(options: Any, secrets: Mapping[str, str]) -> dict[str, Any]:
    found = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if field.init and field.metadata.get("toml", True) and value != default:
            found[field.name] = _plain(field.name, value, secrets)
    return found


def _plain(name: str, value: Any, secrets: Mapping[str, str]) -> Any:
    match value:
        case bool() | int() | float():
            return value
        case str():
            return _text(name, value, secrets)
        case Mapping():
            return {key: _plain(key, one, secrets) for key, one in value.items()}
        case list() | tuple():
            return [_plain(name, one, secrets) for one in value]
        case _ if dataclasses.is_dataclass(value):
            return _fields(value, secrets)
        case _:
            raise _NotSaid


def _text(name: str, text: str, secrets: Mapping[str, str]) -> str:
    """The text with references in the place of secrets."""
    places = {value: place for place, value in secrets.items()}
    if text in places:
        return f"${{{places[text]}}}"
    reference = ""
    if (url := _URL.match(text)) is not None:
        if (place := places.get(unquote(url[2]))) is None or quote(unquote(url[2]), safe="") != url[2]:
            raise _NotSaid
        reference, text = f"{url[1]}:${{quoted {place}}}@", text[url.end() :]
    if _PAIR.search(text) or (_SECRET.search(name) and text) or any(len(s) >= _LONG and s in text for s in places):
        raise _NotSaid
    return reference + text.replace("${", "$${")
