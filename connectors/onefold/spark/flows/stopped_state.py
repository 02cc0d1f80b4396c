"""The state of one operator of a stopped flow, as the last batch left it that Spark has committed."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing

from pyspark.sql import SparkSession

from onefold.clients.files import FileSystems
from onefold.core import ConfigError
from onefold.core.protocol.recovery import PAST_COMMIT_POINT
from onefold.core.values.plain import shown_url
from onefold.engine.asking.snapshots import views_of_tables
from onefold.engine.dataflow.chains import plan
from onefold.engine.queries.questions import Views
from onefold.engine.queries.undo import StateMoment
from onefold.flow.graph.nodes import Graph
from onefold.spark.flows.moved_state import extracted
from onefold.spark.flows.refusals import check_kept
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.drivers import driver_of
from onefold.store.job.offset_log import query_id_of
from onefold.store.pins import all_pins

_WITHIN_S = 10.0


def views_of_batch(
    graph: Graph, root: str, store: str, session: AbstractContextManager[SparkSession], uid: str
) -> Views:
    """Changes nothing, and asks no sink. Raises ConfigError where the flow may be running, or has no such batch;
    CheckpointMismatch where it keeps something else now."""
    with closing(CheckpointStore(store, lock_timeout_s=_WITHIN_S, reads_only=True)) as opened:
        if opened.look() is None:
            raise _not_kept(graph, root)
        generation, decided = opened.facts(graph.flow).generation, opened.history(graph.flow)
        if (driver := driver_of(opened, graph.flow, generation)) is not None:
            raise ConfigError(
                "state-on-spark",
                f"process {driver.pid} of {driver.host} runs flow {graph.flow!r} on Spark, which answers nobody"
                " meanwhile. Stop it, then ask again with offline=True, or --offline; where it is gone, and was another"
                " machine's, `onefold recover` the pipeline first",
            )
        flow, pins = plan(graph, sinks_apart=True), all_pins(opened, graph.flow)
    check_kept(lambda name, find: pins.get(name) or find(), flow)
    with session as spark:
        files = FileSystems(lambda: spark)
        done = max((int(name) for name in files.names(f"{root}/commits") if name.isdigit()), default=-1)
        batch = query_id_of(files.read(f"{root}/metadata") or "{}", root), done
        # An epoch is decided before Spark commits its batch: a driver may have ended between the two.
        last = [record for record in decided if record.state in PAST_COMMIT_POINT][-2:]
        epoch = next((record for record in last if (record.query_id, record.batch_id) == batch), None)
        if epoch is None:
            raise _not_kept(graph, root)
        tables = extracted(spark, root, done, flow, uid)
        return views_of_tables(graph, uid, tables, StateMoment(epoch.epoch, epoch.timestamp_ms))


def _not_kept(graph: Graph, root: str) -> ConfigError:
    return ConfigError(
        "state-not-kept",
        f"the last batch that is done in the checkpoint {shown_url(root)} is of none of the last epochs of flow"
        f" {graph.flow!r}: it has written nothing yet, was moved or restored since, or has another checkpoint or store."
        " Name those that it has; or start it, and stop it again",
    )
