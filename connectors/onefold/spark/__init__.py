"""Runs the contract on Spark: flows, and the writer and formats for jobs that are there already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onefold.core.extras import on_demand

if TYPE_CHECKING:
    from onefold.spark.epoch_writer import EpochWriter
    from onefold.spark.errors.exits import exit_codes
    from onefold.spark.flows.flow_writer import FlowQuery, recover, start
    from onefold.spark.formats.bounded_records import read_bad_records
    from onefold.spark.formats.hbase_source import read_hbase
    from onefold.spark.formats.postgres_format import read_postgres
    from onefold.spark.formats.registration import register
    from onefold.spark.runtime.batch import BatchOutcome

__all__ = [
    "BatchOutcome",
    "EpochWriter",
    "FlowQuery",
    "exit_codes",
    "read_bad_records",
    "read_hbase",
    "read_postgres",
    "recover",
    "register",
    "start",
]

# Every Python worker imports this package, and none of them needs the driver's half.
__getattr__, __dir__ = on_demand(
    __name__,
    {
        "onefold.spark.runtime.batch": ("BatchOutcome",),
        "onefold.spark.epoch_writer": ("EpochWriter",),
        "onefold.spark.flows.flow_writer": ("FlowQuery", "recover", "start"),
        "onefold.spark.errors.exits": ("exit_codes",),
        "onefold.spark.formats.bounded_records": ("read_bad_records",),
        "onefold.spark.formats.hbase_source": ("read_hbase",),
        "onefold.spark.formats.postgres_format": ("read_postgres",),
        "onefold.spark.formats.registration": ("register",),
    },
)
