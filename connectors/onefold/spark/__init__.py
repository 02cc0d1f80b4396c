"""Runs the contract on Spark: pipelines, and the formats for jobs that are there already."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onefold.spark.dedup.deduplication import deduplicate
    from onefold.spark.formats.bad_records import read_bad_records
    from onefold.spark.formats.hbase_source import read_hbase
    from onefold.spark.formats.postgres_source import read_postgres
    from onefold.spark.formats.registration import register
    from onefold.spark.pipeline import Pipeline
    from onefold.spark.runtime.batch import BatchOutcome

__all__ = ["BatchOutcome", "Pipeline", "deduplicate", "read_bad_records", "read_hbase", "read_postgres", "register"]


def __getattr__(name: str) -> object:
    # Every Python worker imports this package, and none of them needs the driver's half.
    if name == "BatchOutcome":
        from onefold.spark.runtime.batch import BatchOutcome

        return BatchOutcome
    if name == "deduplicate":
        from onefold.spark.dedup.deduplication import deduplicate

        return deduplicate
    if name == "Pipeline":
        from onefold.spark.pipeline import Pipeline

        return Pipeline
    if name == "read_bad_records":
        from onefold.spark.formats.bad_records import read_bad_records

        return read_bad_records
    if name == "register":
        from onefold.spark.formats.registration import register

        return register
    if name == "read_hbase":
        from onefold.spark.formats.hbase_source import read_hbase

        return read_hbase
    if name == "read_postgres":
        from onefold.spark.formats.postgres_source import read_postgres

        return read_postgres
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
