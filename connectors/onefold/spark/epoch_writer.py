"""Exactly-once writing of the DataFrames that a Spark job of one's own makes: its query's batches, or batch runs."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypedDict

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from onefold.clients.exposure import check_reached
from onefold.clients.sql.sqlite import check_whole_path
from onefold.clients.sql.url import url_of
from onefold.core import ConfigError, EpochRecord, Fenced, Guarantee, OnefoldError, Retriable, Sink
from onefold.core.protocol.effects import StoreFacts
from onefold.core.protocol.epoch import Outcome, Started
from onefold.core.protocol.patience import PATIENCE_S
from onefold.core.values.names import check_pipeline_name
from onefold.core.values.remedies import WRITER, Remedies, remedies
from onefold.core.waiting import Wait
from onefold.core.writing.dead_letters import Tally
from onefold.spark.errors.failures import asking_jvm, from_spark, seal
from onefold.spark.query_gate import DRAINED, Gate, interrupted_by
from onefold.spark.runtime.access import are_callbacks_closed, check_callbacks, close_callbacks, exposure_of
from onefold.spark.runtime.batch import BatchOutcome, write_batch
from onefold.spark.runtime.checkpoint import is_wanted
from onefold.spark.runtime.query import QuerySession
from onefold.spark.runtime.writers import OwnWriting
from onefold.store.checkpoint_store import CheckpointStore, default_store
from onefold.store.epoch_figures import EpochSteps, RunningEpoch

log = logging.getLogger("onefold")


class WriterSettings(TypedDict, total=False):
    patience_s: float
    checkpoint: str | None
    on_outcome: Callable[[Outcome], None] | None
    require_tls: bool
    trust_machine: bool


class EpochWriter:
    """Writes what a Spark job of your own makes into one or more sinks exactly once, under one name.

        writer = EpochWriter("orders", sinks=[PostgresSink("postgresql://localhost/shop", table="orders")])
        query = df.writeStream.foreachBatch(writer).option("checkpointLocation", "/var/lib/orders").start()
        writer.await_termination(query)

    Make it once there is a session, and before the first query starts: from then on nobody but Spark may call this
    process. Where Spark's plans of a batch repeat exactly (Kafka's and files' do), each of its rows is there once.

    store         URL of the checkpoint store: by default the first sink's own database, else SQLite under `.onefold/`
    patience_s    how long a server that is down, and a worker that Spark cannot start, is waited for: no request is
                  begun again after that, whichever server it is for
    checkpoint    the query's checkpoint directory, only needed where there is no JVM to ask (Spark Connect)
    on_outcome    a function that is called with the outcome of every batch
    require_tls   refuse every connection that leaves this machine without verified TLS, and a Spark whose driver asks
                  nobody for a secret
    trust_machine nobody else uses this machine: start also where any user of it could run code as this process
                  (docs/security.md)

    A writer pickles, and opens its connections when they are needed.
    """

    REMEDIES: ClassVar[Remedies] = WRITER  # that its errors name, unless it is a pipeline's
    _letters: tuple[str, ...] = ()  # sinks of dead letters, of a flow
    _writing: OwnWriting | None = None  # of a flow

    def __init__(
        self,
        name: str,
        sinks: Sequence[Sink],
        store: str | None = None,
        *,
        patience_s: float = PATIENCE_S,
        checkpoint: str | None = None,
        on_outcome: Callable[[Outcome], None] | None = None,
        require_tls: bool = False,
        trust_machine: bool = False,
    ) -> None:
        self.sinks = tuple(sinks)
        self.name = name
        self._remedies = remedies(self.REMEDIES)
        self.bad_records = Tally()
        self.patience_s = patience_s
        self.error: OnefoldError | None = None
        self._store_url = store or next((url for sink in self.sinks if (url := sink.store_url())), None)
        if self._store_url is not None:
            check_whole_path("store", url_of(self._store_url, "the checkpoint store's"))
        self._requires_tls = require_tls
        self._trusts_machine = trust_machine
        check_pipeline_name(name)
        _check_names([sink.name for sink in self.sinks])
        if require_tls:
            check_reached((), self.sinks, self._store_url or "")
        self._checkpoint = checkpoint
        self._on_outcome = on_outcome
        self._live: QuerySession | None = None
        self._gate = Gate()
        self._has_batch = False  # whether the query that was started last has called it
        if not are_callbacks_closed() and (spark := SparkSession.getActiveSession()) is not None:
            with suppress(ConfigError):  # which the first batch raises
                close_callbacks(spark)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_gate"} | {
            "_live": None,
            "error": None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_gate": Gate()}

    def write_batch(self, df: DataFrame, run: str) -> BatchOutcome:
        """Write a batch DataFrame exactly once under the name `run`: the same job run again writes nothing.

        `run` names what is written, not when it is tried: a schedule's date, `{{ ds }}` in airflow. Which of several
        attempts counts is decided once, and of the others nothing shows, so the DataFrame need not be the same in
        each; but a sink that writes through (HBase, keyed Kafka) shows what an attempt wrote before it died, and needs
        the same rows until the run is written. A pipeline that writes batches runs no streaming query. Raises Fenced
        where another process began a run of the pipeline meanwhile.
        """
        self._check_exposure(df.sparkSession)
        session = self._session()
        session.refuse_second_query(df.sparkSession)
        try:
            return write_batch(session, df, run)
        finally:
            session.sweep_after_run()

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write a batch of a query: the function for `foreachBatch`."""
        self.error, self._has_batch = None, True
        try:
            if not self._trusts_machine:
                check_callbacks()
            with self._gate.batch(partial(is_wanted, df.sparkSession)):
                self._session().process(df, batch_id, self._checkpoint, self._writing, self._tell)
        except OnefoldError as error:
            self.error = error
            # The JVM takes the traceback's text apart with a regular expression, and a long chain overflows its stack.
            alone = error.reworded(error.message)
            alone.add_note(seal(alone)[0])  # for a job that waits for its query itself
            raise alone from None

    def _tell(self, outcome: Outcome) -> None:
        if self._on_outcome is not None:
            self._on_outcome(outcome)

    @asking_jvm()
    def await_termination(self, query: StreamingQuery, timeout_s: int | None = None) -> bool:
        """Wait for the query's end, and raise the onefold error that ended it, if one did. False on a timeout.

        In the main thread Ctrl-C and SIGTERM end the query, with its epoch complete in every sink.
        """
        try:
            with interrupted_by(partial(self._interrupt, query)):
                if timeout_s is None:
                    query.awaitTermination()
                elif not query.awaitTermination(timeout_s):
                    return False
        except StreamingQueryException as error:
            reason = self._ended_by(query, error)
            if reason.code != DRAINED:
                raise reason from error
        finally:
            if self._live is not None and not query.isActive:
                self._live.sweep_at_the_end()
        return True

    def _interrupt(self, query: StreamingQuery, by: signal.Signals) -> None:
        log.info("%s: pipeline %r ends after its epoch. A second signal ends the process at once", by.name, self.name)
        with suppress(Retriable):  # the JVM is gone, and so is the query
            self.drain(query, threading.TIMEOUT_MAX)

    @asking_jvm()
    def drain(self, query: StreamingQuery, within_s: float) -> bool:
        """End the query, with its epoch complete in every sink: `await_termination` returns as after its last batch.

        False if that took longer than `within_s` seconds: the query ends all the same once its epoch is complete.
        """
        wait = Wait(within_s, pause_max_s=0.05)
        self._gate.end()
        if self._live is not None:
            self._live.holds.let_go()
        while self._gate.wait_quiet(wait.left_s):
            # Between batches. Where Spark has nothing to do it would never come to the gate.
            if query.isActive and not query.status["isTriggerActive"]:
                query.stop()
            if not query.isActive:
                return True
            if not wait.again():
                break
        return False

    def _ended_by(self, query: StreamingQuery, error: StreamingQueryException) -> OnefoldError:
        """The error that ended the query; Fenced if the pipeline was taken over, so that nobody starts it again.

        A zombie that wakes between two batches fails in Spark's own log, where its successor has written already.
        """
        last = None if self._live is None else self._live.lifecycle.query
        is_its_own = last is None or not hasattr(query, "_jsq") or last.run_id == str(query.runId)
        reason = (self.error if is_its_own else None) or from_spark(error)  # it may have failed before it called
        if isinstance(reason, Fenced) or self._live is None:
            return reason
        return self._live.taken_over(reason) or reason

    def guarantees(self) -> dict[str, Guarantee]:
        """What each sink promises, as it is set up now."""
        return {sink.name: sink.guarantee() for sink in self.sinks}

    def history(self) -> list[EpochRecord]:
        """The newest epochs of this pipeline, oldest first."""
        return self._session().store.history(self.name)

    def facts(self) -> StoreFacts:
        """What the checkpoint store knows of this pipeline now."""
        return self._session().facts()

    def recover(
        self, *, adopt_ledger: bool = False, accept_damage: int | None = None, accept_targets: bool = False
    ) -> Started:
        """Finish or undo what earlier processes left, and fence them, without starting a query.

        The arguments are ways out that an error names; call with them once, then start the query as usual.

        adopt_ledger   believe the destinations instead of the store, which was lost or is an older copy
        accept_damage  take this damaged epoch for complete, after you have written its missing rows by hand
        accept_targets go on with tables and topics that were dropped, or made anew, without the rows that they had
        """
        return self._session().recover(
            adopt_ledger=adopt_ledger, accept_damage=accept_damage, accept_targets=accept_targets
        )

    @property
    def started(self) -> Started | None:
        """The last start of this process, since the pipeline was opened."""
        return None if self._live is None else self._live.started

    @property
    def waiting_for(self) -> OnefoldError | None:
        """The error of a server that is away or busy, for as long as that is waited out; else None."""
        return None if self._live is None else self._live.waiting_for

    @property
    def running(self) -> RunningEpoch | None:
        """The epoch that runs, since when, and at which step; None between epochs."""
        return None if self._live is None else self._live.clock.running

    @property
    def steps(self) -> EpochSteps | None:
        """How many seconds each step of the last epoch took; None before the first."""
        return None if self._live is None else self._live.clock.last

    def close(self) -> None:
        """Let go of all connections. The pipeline can be used again, and its next query takes over from any other
        process: without it, a query that starts again is Fenced where another process took over since."""
        if self._live is not None:
            self._live.close()
            self._live = None

    @property
    def _url(self) -> str:
        """Of the checkpoint store."""
        return self._store_url or default_store(self.name, Path())

    def _check_access(self, spark: SparkSession) -> None:
        """Before a query: nobody but Spark may call this process."""
        self._check_exposure(spark)
        with suppress(ConfigError) if self._trusts_machine else nullcontext():
            close_callbacks(spark)

    def _check_exposure(self, spark: SparkSession) -> None:
        if self._requires_tls and (says := exposure_of(spark)):
            raise ConfigError("tls-required", f"Spark may not be reached so, with require_tls: {says}")

    def _session(self) -> QuerySession:
        if self._live is None:
            self._live = QuerySession(
                self.name,
                self.sinks,
                CheckpointStore(self._url),
                self.patience_s,
                self._letters,
                self.bad_records,
                self._remedies,
            )
        return self._live


def _check_names(names: Sequence[str]) -> None:
    if not names or len(set(names)) != len(names):
        raise ConfigError(
            "sink-names",
            f"a pipeline needs one sink or more, each with its own name; given: {names or 'none'}"
            + (
                '. A sink is called as its table or topic unless it says otherwise: give one name="..."'
                if names
                else ""
            ),
        )
