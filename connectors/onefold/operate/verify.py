"""Compares a pipeline's source with its sinks, row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

from onefold.core import ConfigError
from onefold.operate.stopped import StoppedPipeline
from onefold.pipeline import Engine, Pipeline, Spark
from onefold.spark.verify import verification
from onefold.spark.verify.verification import Verification

__all__ = ["verify"]


def verify(
    pipeline: Pipeline,
    only: Sequence[str] = (),
    key: Sequence[str] = (),
    comparing: Callable[[str], None] = lambda _: None,
    expect: str = "",
) -> dict[str, Verification]:
    """Runs in a Spark session of its own: the result of each sink, or of these, by its name. Says which it is at."""
    if expect and len(pipeline.only(only)) > 1:
        known = ", ".join(repr(sink.name) for sink in pipeline.only(only))
        raise ConfigError("options-conflict", f"--expect says what one sink is to have: name it, --sink, of {known}")
    sinks = [verification.verifiable(sink, key) for sink in pipeline.only(only)]
    if key and not any(verification.takes_key(sink) or {*verification.key_of(sink)} == {*key} for sink in sinks):
        known = "; ".join(f"{sink.name!r} by {', '.join(verification.key_of(sink)) or 'their ids'}" for sink in sinks)
        raise ConfigError(
            "key-mismatch",
            f"--key {','.join(key)} is for sinks that do not say what names a row, and each of these says it: {known}."
            " Leave --key out",
        )
    with closing(StoppedPipeline(pipeline, "Nothing was verified")) as stopped:
        stopped.facts()  # the verifier would make a store, which knows of no epoch
    if isinstance(pipeline.runtime, Engine):
        pipeline = replace(pipeline, runtime=Spark())  # which reads what the engine has written, on this machine
    results = {}
    with pipeline.spark.session_for("onefold verify", "verify") as spark, closing(pipeline.writer()) as flow:
        for sink in sinks:
            comparing(sink.name)
            by = key if verification.takes_key(sink) else verification.key_of(sink)
            results[sink.name] = verification.verify(spark, flow, sink, by, expect)
    return results
