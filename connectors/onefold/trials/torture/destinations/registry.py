"""Which destinations a run has."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from onefold.trials.torture.destinations.destination import Destination
from onefold.trials.torture.destinations.flow_tables import (
    LateTable,
    PairsTable,
    SecondsTable,
    SessionsTable,
    TotalsTable,
    WindowsTable,
)
from onefold.trials.torture.destinations.hbase_rows import HBaseRows
from onefold.trials.torture.destinations.kafka_topic import letters_topic, sales_topic
from onefold.trials.torture.destinations.postgres_table import PostgresTable
from onefold.trials.torture.destinations.state_files import StateFiles
from onefold.trials.workload.workload_settings import LATE, Job


def destinations(job: Job) -> tuple[Destination, ...]:
    """What its rows go to, and its dead letters where these have a topic; of a flow its other tables and its state."""
    there: tuple[tuple[object, Callable[[Job], Destination]], ...] = (
        (job.into_hbase, HBaseRows),
        (job.into_kafka, sales_topic),
        (job.into_postgres, PostgresTable),
        (job.has_letters_topic, letters_topic),
        (job.windows or job.only_totals, TotalsTable),
        (job.windows, WindowsTable),
        (job.windows, SessionsTable),
        (job.windows, PairsTable),
        (job.windows, SecondsTable),
        *((job.windows, partial(LateTable, table=table)) for table in LATE),
        (job.on_engine and not job.has_hops, StateFiles),
    )
    return tuple(destination(job) for is_there, destination in there if is_there)
