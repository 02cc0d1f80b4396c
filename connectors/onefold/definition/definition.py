"""All of a pipeline in one value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlparse

from onefold.clients.options import in_one_form, near, options_model
from onefold.core import ConfigError, Guarantee, Sink
from onefold.core.protocol.epoch import Outcome
from onefold.core.protocol.patience import PATIENCE_S
from onefold.core.sql.sqlite import check_whole_path
from onefold.core.sql.url import url_of
from onefold.core.store.checkpoint_store import default_store
from onefold.core.values.names import check_pipeline_name
from onefold.core.writing.bad_records import check_dead_letters
from onefold.definition.field_types import check_seconds, check_types
from onefold.definition.parts import Restart, SparkSettings, Transform, Trigger
from onefold.sources.kafka import KafkaSource
from onefold.spark.runtime.refusals import check_parts, is_direct_for

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from onefold.spark import Pipeline

__all__ = ["Definition", "check_place"]


@options_model
@dataclass(frozen=True)
class Definition:
    """All of a pipeline: what it reads, what becomes of it, where it is written, and where its progress is kept.

        pipeline = Definition(
            "orders",
            source=KafkaSource("orders", bootstrap_servers="localhost:9092", format="json", schema="id long, ..."),
            sinks=[PostgresSink("postgresql://localhost/shop", table="orders")],
            transform=Transform(sql="SELECT id, amount FROM source WHERE amount > 0"),
        )

    Every command takes it as `jobs/orders.py:pipeline`, or the same as a TOML file, whose keys are these names
    (`onefold new` writes one).

    transform    nothing, by default: the source's rows are the sinks'
    dead_letters the sink of records that cannot be read, where the source has on_error="dead_letter"
    checkpoint   the query's checkpoint: a directory or a URL that Spark's driver and workers reach; by default
                 `.onefold/NAME.checkpoint`
    store        URL of the checkpoint store: by default the first sink's own database, else SQLite: `.onefold/NAME.db`
    directory    of the file that defines it: the folder that relative paths begin in; by default the working directory
    trigger      by default a batch begins when the one before is done
    output_mode  "update" for aggregations (docs/aggregation.md)
    restart      whether, and after how long, `onefold run` starts a query again that has failed
    stop_within_s  how long a stop waits for the epoch that runs
    patience_s   how long a server that is down is waited for
    require_tls  refuse every connection that leaves this machine without verified TLS, and a Spark whose driver asks
                 nobody for a secret
    trust_machine  nobody else uses this machine: start also where any user of it could run code as this process
                 (docs/security.md)
    """

    name: str
    _: KW_ONLY
    source: KafkaSource
    sinks: Sequence[Sink]
    transform: Transform | None = None
    dead_letters: Sink | None = None
    checkpoint: str = ""
    store: str | None = field(default=None, repr=False)  # a password may be in it
    trigger: Trigger = field(default_factory=Trigger)
    output_mode: Literal["append", "update"] = "append"
    spark: SparkSettings = field(default_factory=SparkSettings)
    restart: Restart = field(default_factory=Restart)
    stop_within_s: float = 60.0
    patience_s: float = PATIENCE_S
    require_tls: bool = False
    trust_machine: bool = False
    directory: str = ""

    def __post_init__(self) -> None:
        check_types(self)
        check_seconds("stop_within_s", self.stop_within_s)
        check_seconds("patience_s", self.patience_s)
        check_pipeline_name(self.name)
        directory = Path(self.directory).absolute()
        in_one_form(
            self,
            sinks=tuple(self.sinks),
            directory=str(directory),
            checkpoint=_within(directory, self.checkpoint or f".onefold/{self.name}.checkpoint"),
        )
        if self.store is not None:
            check_place("store", self.store)
        # What a start refuses is best known now.
        check_dead_letters(self.source, self.dead_letters)
        if self.output_mode == "update" and self.is_direct:
            raise ConfigError(
                "direct-path-unsupported",
                "output_mode='update' is for aggregations, and this pipeline has none: give it a transformation by sql"
                " or dataframe, or leave output_mode out",
            )
        check_parts(self.name, self.sinks, self.dead_letters, self.store_url, require_tls=self.require_tls)

    @property
    def everyone(self) -> tuple[Sink, ...]:
        """The sinks, and that of dead letters."""
        return (*self.sinks, *([] if self.dead_letters is None else [self.dead_letters]))

    @property
    def store_url(self) -> str:
        """Where the checkpoint store is; it may hold a password."""
        named = self.store or next((url for sink in self.everyone if (url := sink.store_url())), None)
        return named or default_store(self.name, Path(self.directory))

    @property
    def is_direct(self) -> bool:
        """Whether the task that writes a range of the source also reads it: without Spark's rows in between.

        Not where a sink needs all rows of a key in one task.
        """
        through_spark = self.transform is not None and self.transform.arrow is None
        return not through_spark and is_direct_for(self.source, self.sinks)

    def only(self, names: Sequence[str]) -> list[Sink]:
        """The sinks of these names; all, without any. Raises ConfigError for a name that none has."""
        known = {sink.name: sink for sink in self.sinks}
        for name in names:
            if name not in known:
                hint = near(name, known) or f"; it has {', '.join(known)}"
                raise ConfigError("sink-unknown", f"pipeline {self.name!r} has no sink {name!r}{hint}")
        return [known[name] for name in names or known]

    def guarantees(self) -> dict[str, Guarantee]:
        """What each sink promises, as it is set up now. Asks the servers where the sink must."""
        return {sink.name: sink.guarantee() for sink in self.sinks}

    def pipeline(self, on_outcome: Callable[[Outcome], None] | None = None) -> Pipeline:
        """The pipeline, which opens its connections when they are needed. Raises ConfigError as `Pipeline` does."""
        from onefold.spark import Pipeline

        return Pipeline(
            self.name,
            self.sinks,
            self.store_url,
            patience_s=self.patience_s,
            on_outcome=on_outcome,
            dead_letters=self.dead_letters,
            require_tls=self.require_tls,
            trust_machine=self.trust_machine,
        )

    def start(self, spark: SparkSession, pipeline: Pipeline) -> StreamingQuery:
        """Start the query that reads the source, transforms it and writes it to the sinks."""
        from onefold.spark.runtime.checkpoint import check_writable

        check_writable(self.checkpoint)
        trigger = self.trigger.of_spark()
        if self.is_direct:
            function = None if self.transform is None else self.transform.arrow
            return pipeline.write_direct(spark, self.source, self.checkpoint, trigger, function)
        df = pipeline.read(spark, self.source)
        return pipeline.write(self.transformed(df), self.checkpoint, trigger, self.output_mode)

    def run(self, spark: SparkSession) -> None:
        """Start the query and wait for its end. Raises the error that ended it.

        `onefold run` does more: it starts a query again that has failed, and stops on SIGTERM with its epoch complete.
        """
        with closing(self.pipeline()) as pipeline:
            pipeline.await_termination(self.start(spark, pipeline))

    def schema(self, spark: SparkSession) -> pa.Schema:
        """The schema of the rows that the sinks get. Asks no server; of a source whose schema is known.

        Raises ConfigError where the transformation does not fit the source's columns, or the sinks its output mode.
        """
        from pyspark.sql.pandas.types import to_arrow_schema

        from onefold.sources.kafka import record_ddl
        from onefold.spark.output_modes import check_output_mode, is_epoch_named
        from onefold.spark.runtime.columns import struct_of, with_epoch

        rows = self.transformed(spark.createDataFrame([], struct_of(record_ddl(self.source))))
        if not self.is_direct:
            check_output_mode(self.output_mode, rows, self.sinks)
            if self.output_mode == "update" and is_epoch_named(self.sinks):
                rows = with_epoch(rows, 0)
        return to_arrow_schema(rows.schema, timezone="UTC")

    def transformed(self, df: DataFrame) -> DataFrame:
        """The rows that the sinks get, of these rows of the source; of a batch DataFrame too, as `verify` has it."""
        if self.transform is None:
            return df
        function = self.transform.arrow
        if function is None:
            return self.transform.of_dataframe(df)
        from pyspark.sql.pandas.types import from_arrow_schema

        from onefold.spark.runtime.columns import mapped
        from onefold.spark.runtime.direct import Fetch

        def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return chain.from_iterable(map(function, batches))

        return mapped(df, each, from_arrow_schema(Fetch.of(self.source, function).schema))


def _within(directory: Path, place: str) -> str:
    """The place as an absolute path; a URL is one already."""
    return place if urlparse(place).scheme else str(directory / place)


def check_place(what: str, url: str) -> None:
    """Raise ConfigError for a text that is no SQLAlchemy URL, and for a SQLite file without its whole path."""
    if not url:
        raise ConfigError("option-value", f"{what} is empty: name a URL, or leave it out")
    check_whole_path(what, url_of(url, f"{what}:"))
