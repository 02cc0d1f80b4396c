"""The demo's verdict: the topic against the table, by the verifier that users have."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from onefold.core import Range
from onefold.core.invariants import Evidence, NoDuplicate, NoLoss, verdicts
from onefold.spark.flows.flow_writer import FlowWriter
from onefold.spark.formats.bounded_records import read_records
from onefold.spark.session import session_of_ones_own
from onefold.spark.verify.relations import looked_at
from onefold.spark.verify.sink_comparison import compare_with_table
from onefold.spark.verify.verification import Verification, verify
from onefold.trials.workload.flow_job import flow_of
from onefold.trials.workload.workload_settings import Job


def audit(job: Job, directory: Path) -> Verification:
    """Compare every order with every row. Without the protocol there is no ledger: then the topic's end counts."""
    source, sink = job.source(), job.table()
    with session_of_ones_own("onefold demo audit", directory / "spark") as spark:
        if job.exactly_once:
            with closing(FlowWriter(flow_of(job).graph(), job.store)) as writer:
                return verify(spark, writer, sink, ["id"])
        start, end = source.initial_positions(), job.source(starting_offsets="latest").initial_positions()
        expected = read_records(spark, source, Range(start, end)).where("amount > 0")
        with looked_at(spark, sink) as there:
            comparison = compare_with_table(expected, sink, there, ["id"])
        judged = (NoLoss(), NoDuplicate())  # the others speak of epochs, and there are none
        return Verification(comparison, end, 0, verdicts(Evidence(compared={sink.name: comparison}), judged))
