"""Where columns of a query come from, by its plan: from the groups of its last aggregation, or from their values."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import DataFrame

from onefold.core.writing.replacing import Origins

__all__ = ["origins"]


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
