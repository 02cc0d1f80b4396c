"""What `onefold verify` does, from its options to its table."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from rich.console import Console
from rich.table import Table

from onefold.cli.spark_session import session_of_ones_own
from onefold.cli.verify.verdicts import add_verdicts, print_violations
from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource
from onefold.spark import Pipeline
from onefold.spark.verify.verification import Verification, verify

if TYPE_CHECKING:
    from onefold.sinks import HBaseSink, KafkaSink

__all__ = ["print_verification", "run_verification"]


def run_verification(
    *,
    pipeline: str,
    source: KafkaSource,
    sink: PostgresSink | HBaseSink | KafkaSink,
    letters: PostgresSink | None,
    key: Sequence[str],
    select: Sequence[str],
    where: str | None,
    store: str | None,
) -> Verification:
    """Run the verifier in a Spark session of its own."""

    def transform(df: DataFrame) -> DataFrame:
        filtered = df.where(where) if where else df
        return filtered.selectExpr(*select) if select else filtered

    with (
        tempfile.TemporaryDirectory(prefix="onefold-verify-") as scratch,
        session_of_ones_own("onefold verify", Path(scratch)) as spark,
        closing(Pipeline(pipeline, sinks=[sink], store=store, dead_letters=letters)) as verified,
    ):
        return verify(spark, verified, source, sink, key, transform)


def print_verification(console: Console, result: Verification) -> None:
    found = result.comparison
    table = Table(show_header=False, title="exact" if result.is_exact else "[red]NOT exact[/]")
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_row("rows expected", f"{found.expected:,}")
    table.add_row("rows found", f"{found.actual:,}")
    table.add_row("dead letters", f"{found.dead:,}")
    for kind in ("lost", "duplicated", "changed", "unexpected"):
        table.add_row(kind, f"{getattr(found, kind):,}")
    if found.untold:
        table.add_row("untold", f"{found.untold:,}")
    table.add_row("epochs", f"{result.epochs:,}", end_section=True)
    add_verdicts(table, result.invariants)
    console.print(table)
    for kind, keys in found.samples.items():
        console.print(f"{kind}: {'; '.join(keys)}", highlight=False, markup=False)
    for place, counts in found.partitions.items():
        said = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
        console.print(f"partition {place}: {said}", highlight=False, markup=False)
    for note in found.notes:
        console.print(f"note: {note}", highlight=False, markup=False)
    print_violations(console, result.invariants)
