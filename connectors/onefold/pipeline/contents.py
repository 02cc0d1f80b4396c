"""What a pipeline's file has: a flow, by its parts or by its name in Python, and its operation. The parts are its
sources, the steps that their rows take, and its sinks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from onefold.clients.options import options_model
from onefold.core import ConfigError, OnefoldError, Sink
from onefold.core.source import Source
from onefold.core.values.ids import IdsWithin, OrderedIds
from onefold.core.values.plain import raised_at
from onefold.flow import Flow
from onefold.pipeline.field_types import check_types
from onefold.pipeline.pipeline import Operation, Pipeline
from onefold.pipeline.references import imported
from onefold.pipeline.runtimes import Engine, Spark

if TYPE_CHECKING:
    from onefold.flow import Stream
    from onefold.flow.graph.nodes import Graph

_BESIDE: Mapping[str, tuple[str, ...]] = {  # what each step takes besides
    "filter": (),
    "select": (),
    "with_columns": (),
    "map_batches": ("schema",),
    "flat_map": ("schema",),
    "deduplicate": ("uid",),
    "sql": ("schema", "output_mode"),
    "dataframe": ("schema", "output_mode"),
}
_NEEDED = {"flat_map": "schema", "sql": "schema", "dataframe": "schema", "deduplicate": "uid"}


@options_model
@dataclass(frozen=True, kw_only=True)
class Step:
    """What happens to the rows next: one of these.

    filter        the rows for which it is true: "amount > 0"
    select        these columns: ["id", "amount"], or computed ones, { id = "id", cents = "amount * 100" }
    with_columns  the rows with more columns, or others: { cents = "amount * 100" }
    map_batches   a function from one Arrow record batch to one, or several
    flat_map      a function from a row, a dict, to any number of rows of `schema`
    deduplicate   the rows whose id has not been seen: `OrderedIds` or `IdsWithin`; with a `uid`
    sql           a SELECT of Spark's over the view `source`, which gives the columns of `schema`
    dataframe     a function from a DataFrame of Spark's to another, of the columns of `schema`

    A file names functions as `module:function`, or `functions.py:function` with the path from its own folder.
    """

    filter: str | None = None
    select: Sequence[str] | Mapping[str, str] | None = None
    with_columns: Mapping[str, str] | None = None
    map_batches: Callable[[pa.RecordBatch], Iterable[pa.RecordBatch]] | None = None
    flat_map: Callable[[dict[str, Any]], Iterable[dict[str, Any]]] | None = None
    deduplicate: OrderedIds | IdsWithin | None = None
    sql: str | None = None
    dataframe: Callable[[Any], Any] | None = None
    schema: str | None = None
    output_mode: Literal["append", "update"] | None = None
    uid: str | None = None

    def __post_init__(self) -> None:
        check_types(self)
        kind = self._kind
        for name in ("schema", "output_mode", "uid"):
            if getattr(self, name) is not None and name not in _BESIDE[kind]:
                raise ConfigError("options-conflict", f"a step {kind} takes no {name}: leave it out")
        if (needed := _NEEDED.get(kind)) is not None and getattr(self, needed) is None:
            raise ConfigError("option-missing", f"a step {kind} needs its {needed}")

    @property
    def _kind(self) -> str:
        given = [name for name in _BESIDE if getattr(self, name) is not None]
        if len(given) != 1:
            raise ConfigError(
                "options-conflict", f"a step is one of {', '.join(_BESIDE)}; given: {' and '.join(given) or 'none'}"
            )
        return given[0]

    @property
    def is_of_spark(self) -> bool:
        return self.sql is not None or self.dataframe is not None

    def of(self, stream: Any) -> Any:
        kind = self._kind
        value = getattr(self, kind)
        if kind in ("select", "with_columns"):
            return getattr(stream, kind)(**value) if isinstance(value, Mapping) else stream.select(*value)
        beside = {name: given for name in _BESIDE[kind] if (given := getattr(self, name)) is not None}
        return getattr(stream, f"spark_{kind}" if self.is_of_spark else kind)(value, **beside)


@dataclass(frozen=True)
class Reads:
    """A source of a file, with the name by which its positions are found again, and the sink of its bad records."""

    source: Source = field(metadata={"toml": False})
    _: KW_ONLY
    uid: str | None = None
    dead_letters: Sink | None = None


class FileFlow(Flow):
    """A flow whose graph is made when it is first asked for: only that may ask a server, for a source's columns. Rows
    of several sources, which have the same columns, go the same way."""

    def __init__(self, name: str, sources: Sequence[Reads], steps: Sequence[Step], sinks: Sequence[Sink]) -> None:
        super().__init__(name)
        self._read, self._steps, self._written = tuple(sources), tuple(steps), tuple(sinks)
        for each in sources:
            check_letters(each)
        self._made: Flow | None = None

    def sources(self) -> tuple[Source, ...]:
        return tuple(each.source for each in self._read)

    def sinks(self) -> tuple[Sink, ...]:
        return (*self._written, *self.letters())

    def letters(self) -> tuple[Sink, ...]:
        return tuple(each.dead_letters for each in self._read if each.dead_letters is not None)

    def graph(self) -> Graph:
        if self._made is None:
            self._made = self._built()
        return self._made.graph()

    def _built(self) -> Flow:
        flow = Flow(self.name)
        flow.keep = self.keep
        streams = [flow.source(each.source, _uid(each), each.dead_letters) for each in self._read]
        first, *others = streams
        stream: Stream = first.union(*others) if others else first
        for number, step in enumerate(self._steps):
            if step.is_of_spark and number + 1 < len(self._steps):
                raise ConfigError(
                    "spark-operator-place",
                    f"steps[{number}] is one that Spark runs, and others follow it: let it be the last, or have Spark"
                    " do the rest, too",
                )
            try:
                stream = step.of(stream)
            except ConfigError as error:
                raise error.reworded(f"steps[{number}]: {error.message}") from error.__cause__
        for sink in self._written:
            stream.sink(sink)
        return flow


def _uid(read: Reads) -> str:
    """By default as the source is called, whose name may have any signs: `table shop.orders` is `table-shop.orders`."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", read.source.name).strip("_.-") if read.uid is None else read.uid


def check_letters(read: Reads) -> None:
    """Raise ConfigError where a source's bad records and the sink for them do not go together."""
    source, letters = read.source, read.dead_letters
    if source.on_error == "dead_letter" and letters is None:
        raise ConfigError(
            "dead-letters-mismatch",
            f"the source {source.name!r} has on_error='dead_letter', and no sink for them: give it dead_letters, as"
            " [sources.dead_letters]; or use on_error='fail' or 'skip'",
        )
    if source.on_error != "dead_letter" and letters is not None:
        raise ConfigError(
            "dead-letters-mismatch",
            f"the source {source.name!r} has a sink for dead letters, and on_error={source.on_error!r}, which makes"
            " none: give it on_error='dead_letter', or leave out dead_letters",
        )


@options_model
@dataclass(frozen=True, kw_only=True, repr=False)  # secrets are in it
class PipelineFile(Operation):
    """What a pipeline's file has: a flow, by its parts or by its name in Python, and its operation."""

    name: str | None = None
    runtime: Literal["engine", "spark"] = "spark"
    flow: str | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    sources: Sequence[Reads] = ()
    steps: Sequence[Step] = ()
    sinks: Sequence[Sink] = ()
    engine: Engine = field(default_factory=Engine)
    spark: Spark = field(default_factory=Spark)

    def pipeline(self, directory: Path, flow: Flow | None = None) -> Pipeline:
        """The pipeline; of this flow, where one is given. Raises ConfigError where its parts do not go together."""
        if flow is None:
            flow = self._of_parts() if self.flow is None else self._named(self.flow, directory)
        made = Pipeline(
            flow,
            runtime=self.engine if self.runtime == "engine" else self.spark,
            directory=str(directory),
            **{each.name: getattr(self, each.name) for each in fields(Operation)},
        )
        if isinstance(flow, FileFlow):
            flow.keep = made.found_first
        if flow.is_settled:
            made.check()  # what is refused is best known now
        return made

    def _of_parts(self) -> Flow:
        for name in ("name", "sources", "sinks"):
            if not getattr(self, name):
                raise ConfigError(
                    "option-missing", f'{name} is missing: or name a flow, as flow = "jobs/orders.py:flow"'
                )
        if self.settings:
            raise ConfigError("options-conflict", "settings are for a flow that is named: leave them out, or give flow")
        return FileFlow(self.name or "", self.sources, self.steps, self.sinks)

    def _named(self, reference: str, directory: Path) -> Flow:
        """The flow of that name; a function is called with the settings."""
        given = [name for name in ("sources", "steps", "sinks") if getattr(self, name)]
        if given:
            raise ConfigError(
                "options-conflict", f"flow names a flow, which has its own {', '.join(given)}: leave out one"
            )
        found = imported(reference, directory)
        if callable(found) and not isinstance(found, Flow):
            found = _called(found, reference, self.settings)
        elif self.settings:
            raise ConfigError("options-conflict", f"{reference} is no function of settings: leave settings out")
        if not isinstance(found, Flow):
            raise ConfigError(
                "option-value", f"{reference} is {type(found).__name__}, and a flow is a Flow (onefold.flow)"
            )
        if self.name not in (None, found.name):
            raise ConfigError(
                "options-conflict",
                f"name is {self.name!r}, and the flow is {found.name!r}: leave name out, which is the flow's",
            )
        return found


def _called(function: Callable[..., object], reference: str, settings: Mapping[str, object]) -> object:
    try:
        return function(settings)
    except OnefoldError:
        raise
    except Exception as error:
        tells = any(text in str(error) for text in _texts(settings))  # which may be a secret
        told = "its message has a setting in it, and is not shown" if tells else str(error)
        raise ConfigError(
            "reference-broken",
            f"{reference}, called with the settings, failed{raised_at(error)}: {type(error).__name__}: {told}",
        ) from (None if tells else error)


def _texts(value: object) -> Iterator[str]:
    """All that are in the settings, but for empty ones."""
    match value:
        case str():
            yield from filter(None, (value,))
        case dict():
            yield from _texts([*value.values()])
        case list():
            for one in value:
                yield from _texts(one)
