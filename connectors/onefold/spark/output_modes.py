"""Which output mode goes with a query and its sinks. Checked before the query starts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from onefold.core import ConfigError, Sink, Upsert, Upserting
from onefold.core.writing.replacing import Origins, check_mode, check_replaces
from onefold.spark.origins import origins
from onefold.spark.runtime.dataframe_columns import EPOCH_COLUMN

__all__ = ["check_output_mode", "is_epoch_named", "refused_query"]


def check_output_mode(mode: str, df: DataFrame, sinks: Sequence[Sink]) -> None:
    """Raise ConfigError where the sinks cannot take what the query writes in that mode."""
    check_mode(mode)
    if mode == "append":
        for sink in sinks:
            _check_has_epoch(sink.name, _upsert_of(sink), df)
        return
    for sink in sinks:
        check_replaces(
            sink.name,
            _upsert_of(sink),
            partial(_origins, df),
            row="with output_mode='update' a group's row",
            instead="use output_mode='append', with a watermark",
        )
    if EPOCH_COLUMN in df.columns and is_epoch_named(sinks):
        raise ConfigError(
            "column-name-taken", f"update mode adds the column {EPOCH_COLUMN!r}, and the rows have one: rename theirs"
        )


def is_epoch_named(sinks: Iterable[Sink]) -> bool:
    """Whether a sink tells by the epoch's number which row of a key is newer."""
    upserts = (_upsert_of(sink) for sink in sinks)
    return any(upsert is not None and EPOCH_COLUMN in upsert.order for upsert in upserts)


def refused_query(error: AnalysisException, mode: str) -> ConfigError:
    """The error for a query that Spark does not start."""
    reason = str(error).strip().split("\n", 1)[0]
    needs_watermark = mode == "append" and "watermark" in reason.lower()
    todo = (
        "Give it a watermark, df.withWatermark('at', '10 minutes') before groupBy, and group by a window of 'at'; or"
        " use output_mode='update' and sinks that replace rows by key"
        if needs_watermark
        else "docs/aggregation.md says which queries go with which output mode"
    )
    return ConfigError("query-refused", f"Spark does not run this query with output_mode={mode!r}: {reason}. {todo}")


def _upsert_of(sink: Sink) -> Upsert | None:
    return sink.upsert() if isinstance(sink, Upserting) else None


def _check_has_epoch(sink: str, upsert: Upsert | None, df: DataFrame) -> None:
    if upsert is not None and EPOCH_COLUMN in upsert.order and EPOCH_COLUMN not in df.columns:
        raise ConfigError(
            "epoch-without-update",
            f"sink {sink!r} has {EPOCH_COLUMN!r} in order=, a column that rows get with output_mode='update' only, and"
            " this query's is 'append'. Give the query output_mode='update'; or, where each group is written once,"
            " name any other column in order=",
        )


def _origins(df: DataFrame, names: Sequence[str]) -> Origins:
    """A column that is not there is refused when the sink is opened, with the columns that there are."""
    return origins(df, names) if {*names} <= {*df.columns} else Origins()
