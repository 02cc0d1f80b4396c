"""Compares a pipeline's source with its sinks, row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

from onefold.core import ConfigError
from onefold.pipeline import Pipeline
from onefold.spark.verify import verification
from onefold.spark.verify.verification import Verification
from onefold.store.checkpoint_store import CheckpointStore

__all__ = ["verify"]


def verify(
    pipeline: Pipeline,
    only: Sequence[str] = (),
    key: Sequence[str] = (),
    comparing: Callable[[str], None] = lambda _: None,
) -> dict[str, Verification]:
    """Runs in a Spark session of its own: the result of each sink, or of these, by its name. Says which it is at."""
    sinks = [verification.verifiable(sink, key) for sink in pipeline.only(only)]
    if key and not any(verification.takes_key(sink) or {*verification.key_of(sink)} == {*key} for sink in sinks):
        known = "; ".join(f"{sink.name!r} by {', '.join(verification.key_of(sink)) or 'their ids'}" for sink in sinks)
        raise ConfigError(
            "key-mismatch",
            f"--key {','.join(key)} is for sinks that do not say what names a row, and each of these says it: {known}."
            " Leave --key out",
        )
    with closing(CheckpointStore(pipeline.store_url)) as store:
        if store.look() is None:  # the verifier would make one, which knows of no epoch
            raise ConfigError(
                "store-missing",
                f"there is no checkpoint store at {store.database}, so pipeline {pipeline.name!r} runs with another"
                " one, or from another directory: verify it from there, or correct its store",
            )
    results = {}
    with pipeline.spark.session_for("onefold verify", "verify") as spark, closing(pipeline.writer()) as flow:
        for sink in sinks:
            comparing(sink.name)
            by = key if verification.takes_key(sink) else verification.key_of(sink)
            results[sink.name] = verification.verify(spark, flow, sink, by)
    return results
