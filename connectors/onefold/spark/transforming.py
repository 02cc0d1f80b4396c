"""Transformations of Spark's own: a SELECT over the view `source`, or a function from a DataFrame to another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from pyspark.errors import AnalysisException, ParseException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from onefold.core import ConfigError, OnefoldError
from onefold.core.values.plain import raised_at

SOURCE = "source"  # what SQL selects from

_ENDS = "; \t\r\n"  # of a statement
_VIEW = threading.Lock()  # views of those names are in use


def transformed(df: DataFrame, by: str | Callable[[DataFrame], DataFrame]) -> DataFrame:
    """What SQL, a text, or a function makes of these rows. Raises ConfigError where it fails."""
    with _VIEW, _silenced(PySparkLogger.getLogger("SQLQueryContextLogger")):
        if isinstance(by, str):
            return _selected({SOURCE: df}, by, "transformation")
        try:
            return by(df)
        except OnefoldError:
            raise
        except Exception as error:
            says = f"the transformation's function failed{raised_at(error)}: {type(error).__name__}: {_said(error)}"
            raise ConfigError("transform-failed", says) from error


def selected(views: Mapping[str, DataFrame], sql: str) -> DataFrame:
    """What a query gives of these rows, by the views' names. Raises ConfigError where it fails, and for any other
    statement, which Spark would run."""
    # In parentheses there can be nothing but a query.
    with _VIEW, _silenced(PySparkLogger.getLogger("SQLQueryContextLogger")):
        return _selected(views, f"SELECT * FROM (\n{sql.rstrip(_ENDS)}\n)", "expectation")


def _selected(views: Mapping[str, DataFrame], sql: str, of: str) -> DataFrame:
    spark = next(iter(views.values())).sparkSession
    theirs = {name: spark.table(_quoted(name)) for name in views if _has_view(spark, name)}
    try:
        for name, df in views.items():
            df.createOrReplaceTempView(_quoted(name))
        return spark.sql(sql)
    except (AnalysisException, ParseException) as error:
        raise ConfigError("transform-sql-invalid", f"the {of}'s SQL makes no sense: {_said(error)}") from None
    finally:
        for name in views:
            if name in theirs:
                theirs[name].createOrReplaceTempView(_quoted(name))
            else:
                spark.catalog.dropTempView(name)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _has_view(spark: SparkSession, name: str) -> bool:
    """Whether the job has a view of that name of its own. Spark Connect cannot tell."""
    if not hasattr(spark, "_jsparkSession"):
        return False
    return bool(spark._jsparkSession.sessionState().catalog().getTempView(name).isDefined())


def _said(error: Exception) -> str:
    """Its first line: Spark's plans and traces follow."""
    return str(error).strip().partition("\n")[0].rstrip(";")


@contextmanager
def _silenced(logger: PySparkLogger) -> Iterator[None]:
    """It prints each error that Spark raises, as JSON with its stack trace: the error itself says it."""
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
