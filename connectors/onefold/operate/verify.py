"""Compares a pipeline's source with its sinks, row by row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace

from onefold.core import ConfigError, Sink
from onefold.operate.stopped import StoppedPipeline
from onefold.pipeline import Engine, Pipeline, Spark
from onefold.spark.runtime.dataframe_columns import telling_case
from onefold.spark.verify import verification
from onefold.spark.verify.comparing.wrong_rows import WrongRows
from onefold.spark.verify.verification import Verification
from onefold.spark.verify.without_ledger import verify_without_ledger


def verify(
    pipeline: Pipeline,
    only: Sequence[str] = (),
    key: Sequence[str] = (),
    comparing: Callable[[str], None] = lambda _: None,
    expect: str = "",
    until: Mapping[str, int] | None = None,
    against: Pipeline | None = None,
    mending: dict[Sink, WrongRows] | None = None,
) -> dict[str, Verification]:
    """Runs in a Spark session of its own: the result of each sink, or of these, by its name. Says which it is at.
    With `until` the destination is somebody else's, and nothing is asked of a store (`verify_without_ledger`); or it is
    what another pipeline gives, `against`, and no sink is asked. `mending` gets what a plan is made of."""
    if (expect or against) and len(pipeline.only(only)) > 1:
        known = ", ".join(repr(sink.name) for sink in pipeline.only(only))
        option = "--expect" if expect else "--against"
        raise ConfigError("options-conflict", f"{option} is for one sink's rows: name it, --sink, of {known}")
    sinks = [verification.verifiable(sink, key) for sink in pipeline.only(only)]
    is_known = (verification.takes_key(sink) or {*verification.key_of(sink)} == {*key} for sink in sinks)
    if key and against is None and not any(is_known):
        known = "; ".join(f"{sink.name!r} by {', '.join(verification.key_of(sink)) or 'their ids'}" for sink in sinks)
        raise ConfigError(
            "key-mismatch",
            f"--key {','.join(key)} is for sinks that do not say what names a row, and each of these says it: {known}."
            " Leave --key out",
        )
    if until is None:
        with closing(StoppedPipeline(pipeline, "Nothing was verified")) as stopped:
            stopped.facts()  # the verifier would make a store, which knows of no epoch
    else:
        for each in (pipeline, against or pipeline):
            each.flow.keep = lambda _, find: find()  # what a source's columns are now: no store is asked
    if isinstance(pipeline.runtime, Engine):
        pipeline = replace(pipeline, runtime=Spark())  # which reads what the engine has written, on this machine
    results = {}
    with ExitStack() as opened:
        spark = opened.enter_context(pipeline.spark.session_for("onefold verify", "verify"))
        flow = opened.enter_context(closing(pipeline.writer())) if until is None else None
        graphs = [flow.graph if flow is not None else pipeline.graph, *([against.graph] if against is not None else [])]
        schemas = [node.schema for graph in graphs for node in graph.nodes if node.schema is not None]
        opened.enter_context(telling_case(spark, schemas))
        for sink in sinks:
            comparing(sink.name)
            is_given = key and (against is not None or verification.takes_key(sink))
            by = key if is_given else verification.key_of(sink)
            wrong = None if mending is None else mending.setdefault(sink, WrongRows())
            if flow is None:
                copy = None if against is None else against.graph
                results[sink.name] = verify_without_ledger(spark, pipeline.graph, sink, by, expect, until, copy, wrong)
            else:
                results[sink.name] = verification.verify(spark, flow, sink, by, expect, wrong)
    return results
