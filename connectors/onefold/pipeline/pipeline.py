"""A flow with where and how it runs, and where its progress is kept."""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlparse

from onefold.clients.exposure import check_reached
from onefold.clients.options import in_one_form, options_model
from onefold.clients.sql.sqlite import check_whole_path
from onefold.clients.sql.url import url_of
from onefold.core import ConfigError, Guarantee, InDoubt, Retriable, Sink
from onefold.core.extras import naming_extras
from onefold.core.protocol.epoch import Outcome, Started
from onefold.core.protocol.patience import PATIENCE_S
from onefold.core.restart import Restart, Restarts
from onefold.core.values.names import near
from onefold.core.values.remedies import FLOW, SPARK_FLOW, by_command, by_program, in_words_of
from onefold.flow import Flow
from onefold.flow.planning import check_mechanism
from onefold.flow.processing.mechanisms import has_positions, has_snapshots
from onefold.pipeline.field_types import check_seconds, check_types
from onefold.pipeline.references import have_files_travel
from onefold.pipeline.runtimes import Engine, Spark
from onefold.store.checkpoint_store import CheckpointStore, default_store
from onefold.store.pins import pinned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from onefold.engine.driver.flow_run import FlowRun
    from onefold.engine.queries.questions import Views
    from onefold.flow.graph.nodes import Graph
    from onefold.sources.kafka import KafkaSource
    from onefold.spark.flows.flow_writer import FlowWriter

log = logging.getLogger("onefold")


@dataclass(frozen=True, kw_only=True)
class Operation:
    """What a pipeline has beside its flow and its runtime, in Python and in a file."""

    checkpoint: str = ""
    store: str | None = field(default=None, repr=False)  # a password may be in it
    restart: Restart | None = None
    stop_within_s: float = 60.0
    patience_s: float = PATIENCE_S
    require_tls: bool = False


@options_model
@dataclass(frozen=True)
class Pipeline(Operation):
    """A flow with where and how it runs.

        flow = Flow("orders")
        flow.source(KafkaSource("orders", ...), uid="orders").filter("amount > 0").sink(PostgresSink(url, "orders"))
        pipeline = Pipeline(flow, runtime=Spark("spark://host:7077"), checkpoint="s3a://bucket/orders")
        pipeline.run()

    Every command takes it as `jobs/orders.py:pipeline`, or the same as a TOML file (`onefold new` writes one).

    runtime      `Spark(...)`, or `Engine(...)` on this machine
    checkpoint   where the flow's state is kept, and on Spark the query's checkpoint: a directory or a URL that the
                 driver and all workers reach; by default `.onefold/NAME.checkpoint`
    store        URL of the checkpoint store: by default the first sink's own database, else SQLite: `.onefold/NAME.db`
    restart      whether, and after how long, it is started again once it has failed; by default on Spark without end,
                 and on the engine, where a function that raises is such a failure, three times in a row
    stop_within_s  how long `onefold run` waits, when it is stopped, for the epoch that runs
    patience_s   how long a server that is down is waited for
    require_tls  refuse every connection that leaves this machine without verified TLS, and a Spark whose driver asks
                 nobody for a secret
    directory    of the file that defines it: the folder that relative paths begin in; by default the working directory
    """

    flow: Flow
    _: KW_ONLY
    runtime: Engine | Spark = field(default_factory=Spark)
    directory: str = ""
    named: str = field(default="", init=False, repr=False, compare=False)  # how commands call it, which have read it

    def __post_init__(self) -> None:
        check_types(self)
        check_seconds("stop_within_s", self.stop_within_s)
        check_seconds("patience_s", self.patience_s)
        directory = Path(self.directory).absolute()
        in_one_form(
            self,
            directory=str(directory),
            checkpoint=_within(directory, self.checkpoint or f".onefold/{self.name}.checkpoint"),
        )
        if self.store is not None:
            check_place("store", self.store)
        if self.require_tls:
            check_reached(self.flow.sources(), self.everyone, self.store_url)

    @property
    def name(self) -> str:
        return self.flow.name

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """Those of rows."""
        return tuple(sink for sink in self.everyone if sink not in self.dead_letters)

    @property
    def dead_letters(self) -> tuple[Sink, ...]:
        """The sinks of records that cannot be read."""
        return self.flow.letters()

    @property
    def everyone(self) -> tuple[Sink, ...]:
        return self.flow.sinks()

    @property
    def graph(self) -> Graph:
        """What runtimes read. Of a file whose source leaves its schema open, this asks the source's server."""
        return self.flow.graph()

    @property
    def store_url(self) -> str:
        """Where the checkpoint store is; it may hold a password."""
        named = self.store or next((url for sink in self.everyone if (url := sink.store_url())), None)
        return named or default_store(self.name, Path(self.directory))

    def in_its_words(self) -> AbstractContextManager[None]:
        """The ways out that errors of the block name are such as can be followed for this pipeline."""
        runtime = FLOW if isinstance(self.runtime, Engine) else SPARK_FLOW
        return in_words_of(by_command(self.named, runtime) if self.named else by_program(runtime))

    def found_first(self, name: str, find: Callable[[], str]) -> str:
        """What its first start found under that name; before, what is found now."""
        with closing(CheckpointStore(self.store_url)) as store:
            known = None if store.look() is None else pinned(store, self.name, name)
        return find() if known is None else known

    @property
    def topic(self) -> KafkaSource:
        """Its source. Raises ConfigError where that is not one of Kafka's, alone: what asks knows no others yet."""
        found = self.flow.sources()
        if len(found) == 1 and self.topics:
            return self.topics[0]
        raise ConfigError(
            "one-topic-only",
            f"pipeline {self.name!r} reads {', '.join(source.name for source in found)}: this is only there for one"
            " source of Kafka yet",
        )

    @property
    def topics(self) -> list[KafkaSource]:
        """Those of its sources that are topics."""
        # Kafka's client need not be installed.
        return [cast("KafkaSource", each) for each in self.flow.sources() if type(each).__name__ == "KafkaSource"]

    @property
    def spark(self) -> Spark:
        """Its runtime. Raises ConfigError where that is the engine."""
        if isinstance(self.runtime, Spark):
            return self.runtime
        raise ConfigError(
            "only-on-spark",
            f"pipeline {self.name!r} runs on the engine, and this is only there for pipelines on Spark yet: run it with"
            " `onefold run`, or pipeline.run()",
        )

    @property
    def keeps_state(self) -> bool:
        """Whether its operators remember what they saw, or a query of Spark's does."""
        return self.graph.keeps_state

    def check_snapshots(self) -> None:
        """Raise ConfigError where it has state that no epoch has a snapshot of."""
        if isinstance(self.runtime, Engine) and not has_snapshots(self.runtime.mechanism) and self.keeps_state:
            raise ConfigError(
                "mechanism-without-snapshots",
                f"pipeline {self.name!r} has mechanism={self.runtime.mechanism!r}, whose epochs have no snapshots of"
                " its operators' state: it can be neither read nor copied. Nothing was changed. With"
                " mechanism='barriers', which takes a new checkpoint, it can",
            )
        self.check_positions()

    def check_positions(self) -> None:
        """Raise ConfigError where its store does not say how far it has come in its sources."""
        if isinstance(self.runtime, Engine) and not has_positions(self.runtime.mechanism):
            raise ConfigError(
                "mechanism-without-positions",
                f"pipeline {self.name!r} has mechanism={self.runtime.mechanism!r}, whose epochs are of its sinks alone:"
                " where it stands in its sources, with all that is on its way, its checkpoint knows, and nothing else"
                " can read or move that. Nothing was changed",
            )

    def check_state(self) -> None:
        """Raise ConfigError where nobody can be asked for its state while it runs."""
        self.check_snapshots()
        if isinstance(self.runtime, Spark):
            raise ConfigError(
                "state-on-spark",
                f"pipeline {self.name!r} runs on Spark, which keeps its state itself, and answers nobody. Stop it, then"
                " read what its last batch left: StateReader(..., offline=True), or --offline",
            )

    def views(self, uid: str) -> Views:
        """What the operator of that uid keeps, where the flow is stopped: as its last epoch left it."""
        self.check_snapshots()
        if isinstance(self.runtime, Engine):
            from onefold.engine.asking.snapshots import views_of_snapshots
            from onefold.engine.state.storage import Storage

            return views_of_snapshots(Storage(self.checkpoint, self.name), self.graph, uid)
        from onefold.spark.flows.stopped_state import views_of_batch

        session = self.runtime.session_for(f"onefold state {self.name}", "state")
        with self.in_its_words():
            return views_of_batch(self.graph, self.checkpoint, self.store_url, session, uid)

    def check(self) -> None:
        """Raise ConfigError for what its runtime cannot run of the flow."""
        if isinstance(self.runtime, Engine):
            from onefold.engine.driver.running import check_runs_here

            check_runs_here(self.graph)
            check_mechanism(self.graph, self.runtime.mechanism, self.runtime.state, self.checkpoint)
            return
        from onefold.spark.flows.refusals import check_flow

        check_flow(self.graph)

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

    def run(self, *, listen: str | None = None) -> None:
        """Run until its sources end, or SIGTERM or Ctrl-C asks it to. Raises the error that ended it.

        It is started again as `restart` says. Raises Fenced where another process has taken it over.

        listen  where the page, the API and the metrics of a daemon show it meanwhile: "127.0.0.1:8080"
        """
        if listen is not None:
            with naming_extras("cli"):  # the daemon knows pipelines, and they know none of it
                own_run = importlib.import_module("onefold.daemon.listen.own_run")
            own_run.run(self, listen)
            return
        if isinstance(self.runtime, Engine):
            self.run_here()
            return
        restarts = Restarts(self.restart or Restart())
        writer: FlowWriter | None = None  # one for all starts: once another process took over, the next one is Fenced
        with self.runtime.session_for(f"onefold {self.name}", "run") as spark, ExitStack() as opened:
            while True:
                ran_from_s = None
                try:
                    writer = writer or opened.enter_context(closing(self.writer()))
                    query = self.start(spark, writer)
                    ran_from_s = time.monotonic()
                    writer.await_termination(query)
                    return
                except (Retriable, InDoubt) as error:
                    failed_s = time.monotonic()
                    delay_s = restarts.delay_s(failed_s - (ran_from_s or failed_s), failed_s)
                    if delay_s is None or error.code == "jvm-gone":
                        raise
                    log.warning("pipeline %r failed and is started again in %.0f s: %s", self.name, delay_s, error)
                    time.sleep(delay_s)

    def run_here(
        self,
        on_outcome: Callable[[Outcome], None] | None = None,
        on_opened: Callable[[FlowRun], None] | None = None,
    ) -> None:
        """Run it on the engine, once; both functions as `onefold.engine.run` has them. Raises ConfigError where its
        runtime is Spark."""
        runtime = self.runtime
        if not isinstance(runtime, Engine):
            raise ConfigError(
                "only-on-engine", f"pipeline {self.name!r} runs on Spark: run it with `onefold run`, or pipeline.run()"
            )
        settings: dict[str, Any] = {} if self.restart is None else {"restart": self.restart}
        with self.in_its_words():
            self.flow.run(
                checkpoint=self.checkpoint,
                store=self.store_url,
                patience_s=self.patience_s,
                on_outcome=on_outcome,
                on_opened=on_opened,
                **asdict(runtime),
                **settings,
            )

    def recover(
        self, *, adopt_ledger: bool = False, accept_damage: int | None = None, accept_targets: bool = False
    ) -> Started:
        """Finish or undo what earlier processes left, and fence them, without running the flow.

        adopt_ledger   believe the destinations instead of the store, which was lost or is an older copy
        accept_damage  take this damaged epoch for complete, after you have written its missing rows by hand
        accept_targets go on with tables and topics that were dropped, or made anew, without the rows that they had
        """
        ways = {"adopt_ledger": adopt_ledger, "accept_damage": accept_damage, "accept_targets": accept_targets}
        settings = {"store": self.store_url, "patience_s": self.patience_s, **ways}
        if isinstance(self.runtime, Engine):
            settings["mechanism"] = self.runtime.mechanism
        spark = True if isinstance(self.runtime, Spark) else None
        with self.in_its_words():
            started: Started = self.flow.recover(checkpoint=self.checkpoint, spark=spark, **settings)
        return started

    def writer(self, on_outcome: Callable[[Outcome], None] | None = None) -> FlowWriter:
        """What runs it on Spark, and opens its connections when they are needed."""
        from onefold.spark.flows.flow_writer import FlowWriter

        have_files_travel()
        with self.in_its_words():
            return FlowWriter(
                self.graph,
                self.store_url,
                patience_s=self.patience_s,
                on_outcome=on_outcome,
                require_tls=self.require_tls,
                trust_machine=self.spark.trust_machine,
            )

    def start(self, spark: SparkSession, writer: FlowWriter) -> StreamingQuery:
        """Start the query that runs it."""
        from onefold.clients.files import check_writable  # with file systems, which no start on the engine needs

        check_writable(self.checkpoint)
        return writer.start(spark, self.checkpoint, self.spark.trigger())


def _within(directory: Path, place: str) -> str:
    """The place as an absolute path; a URL is one already."""
    return place if urlparse(place).scheme else str(directory / place)


def check_place(what: str, url: str) -> None:
    """Raise ConfigError for a text that is no database's URL, and for a SQLite file without its whole path."""
    if not url:
        raise ConfigError("option-value", f"{what} is empty: name a URL, or leave it out")
    check_whole_path(what, url_of(url, f"{what}:"))
