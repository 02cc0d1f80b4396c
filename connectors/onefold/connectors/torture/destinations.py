"""Which destinations a run has."""

from __future__ import annotations

from onefold.connectors.torture.destination import Destination
from onefold.connectors.torture.hbase_rows import HBaseRows
from onefold.connectors.torture.kafka_topic import letters_topic, sales_topic
from onefold.connectors.torture.postgres_table import PostgresTable
from onefold.connectors.workload.settings import Job

__all__ = ["destinations"]


def destinations(job: Job) -> tuple[Destination, ...]:
    """What its rows go to, and its dead letters where these have a topic."""
    rows: tuple[Destination, ...] = (sales_topic(job) if job.is_into_kafka else PostgresTable(job),)
    if job.is_into_hbase:
        rows = (HBaseRows(job), PostgresTable(job)) if job.beside else (HBaseRows(job),)
    return (*rows, letters_topic(job)) if job.has_letters_topic else rows
