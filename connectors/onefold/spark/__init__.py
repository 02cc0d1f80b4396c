"""Runs the contract on Spark: pipelines, and the formats for jobs that are there already."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onefold.spark.batch import BatchOutcome
    from onefold.spark.formats import register
    from onefold.spark.pipeline import Pipeline

__all__ = ["BatchOutcome", "Pipeline", "register"]


def __getattr__(name: str) -> object:
    # Every Python worker imports this package, and none of them needs the driver's half.
    if name == "BatchOutcome":
        from onefold.spark.batch import BatchOutcome

        return BatchOutcome
    if name == "Pipeline":
        from onefold.spark.pipeline import Pipeline

        return Pipeline
    if name == "register":
        from onefold.spark.formats import register

        return register
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
