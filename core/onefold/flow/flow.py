"""A flow: what users write, for this machine and for Spark."""

from __future__ import annotations

import importlib
from typing import Any, Literal

import pyarrow as pa

from onefold.core.contract import Sink
from onefold.core.errors import ConfigError, OnefoldError
from onefold.core.extras import naming_extras, uncollected
from onefold.core.source import Keep, Source
from onefold.core.values.durations import duration_us
from onefold.core.values.names import check_pipeline_name
from onefold.core.writing.dead_letters import BAD_COLUMNS
from onefold.flow.building import Nodes, needs_uid
from onefold.flow.graph.event_time import clocks_of
from onefold.flow.graph.nodes import MAX_PARALLELISM, Edge, Graph
from onefold.flow.graph.operators import Reading, Writing
from onefold.flow.processing.declaring import as_schema
from onefold.flow.processing.evolution import NO_EVOLUTION, Evolution
from onefold.flow.processing.mechanisms import AlignmentKind, Mechanism, check_alignment
from onefold.flow.streams import Stream
from onefold.flow.time.alignment import Alignment
from onefold.flow.time.watermarks import Watermarks, check_watermarks_of
from onefold.flow.writing import add_sink, with_query

# Errors that name a function's line, or its value: the frames below `run` would only hide that.
_OF_FUNCTIONS = frozenset({"function-row", "function-value", "operator-failed", "restarts-exhausted"})


class Flow:
    """What happens to records between sources and sinks, under one name.

        flow = Flow("totals")
        orders = flow.source(KafkaSource("orders", ...), uid="orders")
        totals = orders.filter(pc.field("amount") > Decimal(0)).key_by("account").aggregate(
            uid="totals", total=sum_("amount"), orders=count()
        )
        totals.sink(PostgresSink(url, "totals", mode="upsert", key="account", order="onefold_epoch"))
        flow.run(checkpoint="/var/lib/totals", workers=2)

    Each call checks what it is given: the schema of every stream is known before there are records.

    max_parallelism  in how many key groups keyed state is kept, and so how many workers may share it; for good
    evolution        what becomes of the state of an earlier version, where the code alone does not say it
    """

    def __init__(self, name: str, max_parallelism: int = 128, evolution: Evolution = NO_EVOLUTION) -> None:
        check_pipeline_name(name)
        if not 1 <= max_parallelism <= MAX_PARALLELISM:
            raise ConfigError(
                "max-parallelism", f"max_parallelism={max_parallelism} must be between 1 and {MAX_PARALLELISM:,}"
            )
        self.name = name
        self.max_parallelism, self.evolution = max_parallelism, evolution
        self.keep: Keep = lambda _, find: find()  # what is found where a source's settings leave its schema open
        self.endpoints: str | None = None  # what its store keeps of it for commands that do not import it
        self._nodes = Nodes(name)
        self._alignments: list[Alignment] = []

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def source(
        self,
        source: Source,
        uid: str | None = None,
        dead_letters: Sink | None = None,
        watermarks: Watermarks | None = None,
    ) -> Stream:
        """The records of a source. Where its settings leave their schema open, its server is asked.

        uid           the name under which its positions are found again when the flow changes
        dead_letters  the sink of records that cannot be read, where the source has `on_error="dead_letter"`: rows of
                      `onefold.core.writing.dead_letters.LETTER_COLUMNS`, in the same epoch as the others. Or let them
                      be the stream `.side("bad")`, of `BAD_COLUMNS`
        watermarks    what its records say of event time: `bounded("at", "5 seconds")`, `monotonic("at")`, ...; or
                      `ingestion()`, and their time is that at which they are read
        """
        uid = needs_uid(uid, f"source({source.name})")
        operators = [node.operator for node in self._nodes.made]
        if source.name in [each.source.name for each in operators if isinstance(each, Reading)]:
            raise ConfigError(
                "source-twice",
                f"flow {self.name!r} reads {source.name!r} twice, and would not know whose positions are whose: read it"
                " once, and use the stream twice",
            )
        reading, label = Reading(source, watermarks), f"the source {source.name!r}"
        given = _schema_of(source, self.keep)
        made = reading.given(given)
        schema = as_schema(made, f"{label}{'' if made is given else ' with ingestion()'}")
        has_bad = source.on_error == "dead_letter"
        if dead_letters is not None and not has_bad:
            raise ConfigError(
                "dead-letters-mismatch",
                f"the flow has a sink for the dead letters of {source.name!r}, which has on_error={source.on_error!r}"
                " and makes none: give the source on_error='dead_letter', or leave out dead_letters",
            )
        if watermarks is not None:
            check_watermarks_of(watermarks, schema, label)
        node = self._nodes.add(reading, [], schema, {"bad": BAD_COLUMNS} if has_bad else None, uid)
        if dead_letters is not None:
            add_sink(self._nodes, Edge(node.number, output="bad"), dead_letters, is_letters=True)
        return Stream(self._nodes, Edge(node.number))

    def align(self, drift: str, *streams: Stream) -> None:
        """Of these sources' own streams, `flow.align("5 minutes", orders, payments)`: a partition that is further ahead
        in event time than that waits for the lowest one that is not silent. By what is known when an epoch is planned,
        so that it may be ahead by an epoch more. Raises ConfigError for other streams. A flow in which no operator
        behind one of them goes by event time is refused when it is to run. Spark has no such thing."""
        mine = [each for each in streams if isinstance(each, Stream) and each._nodes is self._nodes]
        nodes = [self._nodes.made[each._edge.source] for each in mine]
        policies = {str(node.uid): node.operator.watermarks for node in nodes if isinstance(node.operator, Reading)}
        uids = [uid for uid, policy in policies.items() if policy is not None and not policy.by_epochs]
        if len(uids) != len(streams) or len(streams) < 2:
            raise ConfigError(
                "align-streams",
                f"align({drift!r}) takes the streams of two sources or more of flow {self.name!r}, as flow.source(...)"
                " gives them, with watermarks= that go by their records",
            )
        self._alignments.append(Alignment(duration_us(drift, "drift"), frozenset(uids)))

    def sources(self) -> tuple[Source, ...]:
        """What it reads."""
        return tuple(node.operator.source for node in self._nodes.made if isinstance(node.operator, Reading))

    def sinks(self) -> tuple[Sink, ...]:
        """What it writes to, those of dead letters last."""
        made = [node.operator for node in self._nodes.made if isinstance(node.operator, Writing)]
        return tuple(each.sink for each in sorted(made, key=lambda each: each.is_letters))

    def letters(self) -> tuple[Sink, ...]:
        """Of its sinks those of dead letters."""
        made = [node.operator for node in self._nodes.made]
        return tuple(each.sink for each in made if isinstance(each, Writing) and each.is_letters)

    @property
    def is_settled(self) -> bool:
        """Whether the columns of all its sources are known without asking a server."""
        try:
            return all(source.arrow_schema() is not None for source in self.sources())
        except ConfigError as error:
            if error.code != "schema-not-resolved":
                raise
            return False

    def graph(self) -> Graph:
        """The flow as runtimes read it. Raises ConfigError where it has no sink, or rows that go nowhere, and where
        an operator that only Spark runs cannot stand."""
        if not self._nodes.sinks():
            raise ConfigError("sink-names", f"flow {self.name!r} has no sink: end its streams with .sink(...)")
        used = {(edge.source, edge.output) for node in self._nodes.made for edge in node.inputs}
        for node in self._nodes.made:
            for output in node.outputs():
                if (node.number, output) not in used:
                    raise ConfigError("stream-unused", self._unused(node.name, output))
        made = self._nodes.made
        timed = {uid for node in made if node.keeps_event_time for uid in clocks_of(made, node.inputs)}
        if untimed := sorted(uid for each in self._alignments for uid in each.uids - timed):
            raise ConfigError(
                "align-untimed",
                f"flow {self.name!r} aligns the source {untimed[0]!r}, and no operator goes by the event time of its"
                " records, so that nobody knows how far they have come: leave it out of align(), or give it a window, a"
                " join or timers of event time",
            )
        nodes, alignments = with_query(self.name, made), tuple(self._alignments)
        return Graph(self.name, nodes, self.max_parallelism, self.endpoints, self.evolution, alignments)

    def explain(
        self,
        format: Literal["text", "svg", "mermaid"] = "text",
        *,
        mechanism: Mechanism = "barriers",
        alignment: AlignmentKind = "aligned",
        workers: int = 1,
    ) -> str:
        """The graph as text, or as an SVG: operators, the ways and the columns between them, and what is guaranteed
        where it runs on the engine with these settings. Or as a flowchart of operators and ways in Mermaid's language.
        Asks a server only where a sink's guarantee depends on it."""
        from onefold.flow.explaining import FORMATS, Protection  # with the drawing, which no run of a flow needs

        if format not in FORMATS:
            raise ConfigError("option-value", f"format={format!r} must be {', '.join(FORMATS)}")
        check_alignment(alignment, None, mechanism)
        return FORMATS[format](self.graph(), Protection(mechanism, alignment, workers))

    def run(self, *, checkpoint: str, workers: int = 1, listen: str | None = None, **settings: Any) -> Any:
        """Run the flow on this machine until its sources end, or until it is stopped.

        checkpoint  the directory of its state
        workers     how many processes run it
        listen      where the page, the API and the metrics of a daemon show it meanwhile: "127.0.0.1:8080"
        settings    more, as `onefold.engine.run` takes them
        """
        with naming_extras("engine"), uncollected():
            engine = importlib.import_module("onefold.engine")  # the runtimes know the flow, and it none of them
        try:
            if listen is not None:
                with naming_extras("cli"):
                    own_run = importlib.import_module("onefold.daemon.listen.own_run")
                return own_run.run_flow(self, listen, checkpoint=checkpoint, workers=workers, **settings)
            return engine.run(self.graph(), checkpoint=checkpoint, workers=workers, **settings)
        except OnefoldError as error:
            if error.code in _OF_FUNCTIONS:
                raise error.with_traceback(None) from None
            raise

    def start(self, spark: Any, *, checkpoint: str, **settings: Any) -> Any:
        """Start the flow on Spark, as a query that goes on; returns an `onefold.spark.FlowQuery`.

        spark       the session
        checkpoint  the query's checkpoint, where Spark keeps its state
        settings    more, as `onefold.spark.start` takes them: `trigger`, `store`, ...
        """
        if "mechanism" in settings:
            raise ConfigError(
                "mechanism-on-spark",
                f"flow {self.name!r} runs on Spark, whose mechanism is micro-batches, and is given another: leave"
                " mechanism out, or run it on this machine, by flow.run(...)",
            )
        runtime = importlib.import_module("onefold.spark")
        return runtime.start(self.graph(), spark, checkpoint=checkpoint, **settings)

    def recover(self, *, checkpoint: str, spark: Any = None, **settings: Any) -> Any:
        """Finish or undo what earlier drivers left, without running the flow: a way out that an error names.

        checkpoint  as for `run` or `start`
        spark       the session, for a flow that Spark runs
        settings    as `onefold.engine.recover` and `onefold.spark.recover` take them: `store`, and which way it is
                    (`adopt_ledger=True`, `accept_damage=`, `accept_targets=True`)
        """
        if spark is not None:
            return importlib.import_module("onefold.spark").recover(self.graph(), **settings)
        with naming_extras("engine"):
            engine = importlib.import_module("onefold.engine")
        return engine.recover(self.graph(), checkpoint=checkpoint, **settings)

    def _unused(self, name: str, output: str | None) -> str:
        if output is None:
            return f"the rows of {name} in flow {self.name!r} go nowhere: give them a sink, or leave it out"
        way = "give the source dead_letters= or on_error='fail'" if output == "bad" else "do not declare it"
        return f"the side output {output!r} of {name} goes nowhere: give .side({output!r}) a sink, or {way}"


def _schema_of(source: Source, keep: Keep) -> pa.Schema:
    """Asks the source's server only where the settings leave the schema open. A runtime keeps what was found first."""
    try:
        return source.arrow_schema()
    except ConfigError:
        return source.resolved(keep).arrow_schema()
