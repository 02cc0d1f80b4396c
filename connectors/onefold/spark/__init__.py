"""Runs the contract on Spark: pipelines, and the formats for jobs that are there already."""

from onefold.spark.pipeline import Pipeline
from onefold.spark.register import register

__all__ = ["Pipeline", "register"]
