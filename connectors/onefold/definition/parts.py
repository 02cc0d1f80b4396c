"""What a definition has beside its source and its sinks: a transformation, a trigger, Spark's settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from onefold.clients.options import options_model
from onefold.core import ConfigError
from onefold.core.checks import present
from onefold.core.restart import Restart
from onefold.definition.field_types import check_types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
else:
    DataFrame = Any  # files are written and checked where there is no Spark

__all__ = ["Restart", "SparkSettings", "Transform", "Trigger"]

_SPAN = re.compile(r"\s*[0-9]+(\.[0-9]+)?\s+(millisecond|second|minute|hour|day)s?\s*", re.IGNORECASE)


@options_model
@dataclass(frozen=True, kw_only=True)
class Transform:
    """What becomes of the source's rows before they are written: one of these, each a deterministic function.

    sql        a SELECT of Spark's SQL over the view `source`: "SELECT id, amount FROM source WHERE amount > 0"
    dataframe  a function from a streaming DataFrame to another
    arrow      a function from one Arrow record batch to any number of them, all of one schema. The data then bypasses
               the JVM (`Pipeline.write_direct`)

    A file names functions as `module:function`, or `functions.py:function` with the path from its own folder.
    """

    sql: str | None = None
    dataframe: Callable[[DataFrame], DataFrame] | None = None
    arrow: Callable[[pa.RecordBatch], Iterable[pa.RecordBatch]] | None = None

    def __post_init__(self) -> None:
        check_types(self)
        given = [name for name in ("sql", "dataframe", "arrow") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ConfigError(
                "options-conflict",
                f"a transformation is one of sql, dataframe and arrow; given: {' and '.join(given) or 'none'}",
            )

    def of_dataframe(self, df: DataFrame) -> DataFrame:
        """The rows to write of these rows of the source. Not for `arrow`. Raises ConfigError where it fails."""
        from onefold.spark.transforming import transformed

        return transformed(df, present(self.dataframe, "it has one of the three") if self.sql is None else self.sql)


@options_model
@dataclass(frozen=True, kw_only=True)
class Trigger:
    """When Spark plans a batch: as soon as the one before is done, every so often, or until what is there is read.

    processing_time  "10 seconds": at most so often
    available_now    end when all is written that was there at the start
    """

    processing_time: str | None = None
    available_now: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        if self.processing_time is not None and self.available_now:
            raise ConfigError("options-conflict", "a trigger is processing_time or available_now, not both")
        if self.processing_time is not None and not _SPAN.fullmatch(self.processing_time):
            raise ConfigError(
                "option-value", f"processing_time is a time as '10 seconds', not {self.processing_time!r}"
            )

    def of_spark(self) -> dict[str, Any]:
        """What `DataStreamWriter.trigger` takes."""
        if self.available_now:
            return {"availableNow": True}
        return {"processingTime": self.processing_time or "0 seconds"}


@options_model
@dataclass(frozen=True)
class SparkSettings:
    """The Spark session that a command brings.

    master    "local[*]", "spark://host:7077", "yarn", ...
    settings  Spark's own: {"spark.sql.shuffle.partitions": "8"}
    """

    master: str = "local[*]"
    _: KW_ONLY
    settings: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)  # passwords may be in it

    def __post_init__(self) -> None:
        check_types(self)
        for key in self.settings:
            if not key.startswith("spark."):
                raise ConfigError("option-value", f"settings: Spark's own begin with 'spark.', and {key!r} does not")
        if "spark.master" in self.settings:
            raise ConfigError("options-conflict", "settings has spark.master, which is `master`: leave it out there")
