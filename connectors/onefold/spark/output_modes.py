"""Which output mode goes with a query and its sinks, by its plan. Checked before the query starts."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from onefold.core import ConfigError, Sink, Upsert, Upserting
from onefold.core.writing.arrangement import EPOCH_COLUMN
from onefold.core.writing.replacing import Origins, check_mode, check_replaces


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


class _Kind(enum.Enum):
    OF_GROUPS = enum.auto()
    OF_VALUES = enum.auto()
    UNKNOWN = enum.auto()


def origins(df: DataFrame, names: Sequence[str]) -> Origins:
    """Where the columns `names` of the query come from. Unknown on Spark Connect, behind a Python function or a join,
    and without an aggregation."""
    plans = _plans(df) if hasattr(df, "_jdf") else []
    if not plans:
        return Origins(unknown=tuple(names))
    patterns = df.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern  # type: ignore[union-attr]  # may be None
    changing = (patterns.AGGREGATE_EXPRESSION(), patterns.CURRENT_LIKE())
    found = {name: _origin(plans, name, changing) for name in names}

    def of_kind(kind: _Kind) -> tuple[str, ...]:
        return tuple(name for name in names if found[name][0] is kind)

    unknown = of_kind(_Kind.UNKNOWN)
    made_of = {attribute for _, attributes in found.values() for attribute in attributes}
    groupings = [] if unknown else _each(plans[-1].groupingExpressions())
    left_out = tuple(each.sql() for each in groupings if not _references(each) <= made_of)
    return Origins(of_kind(_Kind.OF_VALUES), unknown, left_out)


def _plans(df: DataFrame) -> list[Any]:
    """The plan's nodes from the query's rows to its last aggregation. Empty where none is, or branches are between."""
    plans: list[Any] = [df._jdf.queryExecution().analyzed()]
    while plans[-1].nodeName() != "Aggregate":
        children = _each(plans[-1].children())
        if len(children) != 1:
            return []
        plans += children
    return plans


def _origin(plans: Sequence[Any], name: str, changing: Sequence[Any]) -> tuple[_Kind, set[int]]:
    """Where a column comes from, and the attributes that it is made of below the aggregation."""
    wanted = _ids(each for each in _each(plans[0].output()) if each.name() == name)
    for plan in plans:
        kind = plan.nodeName()
        if kind not in ("Project", "Aggregate"):
            if not wanted <= _ids(_each(plan.children().apply(0).output())):
                return _Kind.UNKNOWN, set()
            continue
        expressions = _each(plan.projectList() if kind == "Project" else plan.aggregateExpressions())
        made = [each for each in expressions if each.exprId().id() in wanted]
        if any(not each.deterministic() or any(map(each.containsPattern, changing)) for each in made):
            return _Kind.OF_VALUES, set()
        wanted = {attribute for each in made for attribute in _references(each)}
    return _Kind.OF_GROUPS, wanted


def _references(expression: Any) -> set[int]:
    return _ids(_each(expression.references().toSeq()))


def _ids(attributes: Iterable[Any]) -> set[int]:
    return {each.exprId().id() for each in attributes}


def _each(scala: Any) -> list[Any]:
    return [scala.apply(at) for at in range(scala.size())]
