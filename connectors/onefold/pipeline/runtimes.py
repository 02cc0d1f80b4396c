"""Where a pipeline runs: on this machine, by onefold's own engine, or on Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from onefold.clients.options import options_model
from onefold.core import ConfigError
from onefold.flow.processing.mechanisms import AlignmentKind, Mechanism, check_alignment
from onefold.pipeline.field_types import check_seconds, check_types

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SPAN = re.compile(r"\s*[0-9]+(\.[0-9]+)?\s+(millisecond|second|minute|hour|day)s?\s*", re.IGNORECASE)


@options_model
@dataclass(frozen=True, kw_only=True)
class Engine:
    """This machine: a driver and its workers, without a JVM.

    workers           how many processes run the flow
    state             which backend keeps its state: "memory", or "rocksdb" for more than fits there
    mechanism         what protects records against crashes: "barriers", or for comparison "microbatch", "transaction"
                      or "ack", which is at least once; for good
    epoch_interval_s  the shortest time from the begin of an epoch to that of the next
    alignment         how a subtask waits for an epoch's barriers: "aligned"; "unaligned", barriers overtake what waits
                      in channels; "at_least_once", none is waited for (docs/engine.md)
    alignment_timeout_s  of "unaligned": how long a subtask aligns before barriers overtake; None: not at all
    retain            of how many epochs the state is kept
    """

    workers: int = 1
    state: Literal["memory", "rocksdb"] = "memory"
    mechanism: Mechanism = "barriers"
    epoch_interval_s: float = 0.0
    alignment: AlignmentKind = "aligned"
    alignment_timeout_s: float | None = None
    retain: int = 3

    def __post_init__(self) -> None:
        check_types(self)
        check_alignment(self.alignment, self.alignment_timeout_s, self.mechanism)
        if self.epoch_interval_s:
            check_seconds("epoch_interval_s", self.epoch_interval_s)
        for name in ("workers", "retain"):
            if getattr(self, name) < 1:
                raise ConfigError("option-value", f"{name} is a number from 1 on, not {getattr(self, name)!r}")


@options_model
@dataclass(frozen=True)
class Spark:
    """A Spark session: one that is brought along, or the `session` that there is.

    master           "local[*]", "spark://host:7077", "yarn", ...
    settings         Spark's own: {"spark.sql.shuffle.partitions": "8"}
    processing_time  "10 seconds": at most so often an epoch begins; by default when the one before is done
    available_now    end when all is written that was there at the start
    trust_machine    nobody else uses this machine: start also where any user of it could run code as this process
                     (docs/security.md)
    """

    master: str = "local[*]"
    _: KW_ONLY
    settings: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)  # passwords may be in it
    processing_time: str | None = None
    available_now: bool = False
    trust_machine: bool = False
    session: object | None = field(default=None, compare=False, repr=False, metadata={"toml": False})

    def __post_init__(self) -> None:
        check_types(self)
        for key in self.settings:
            if not key.startswith("spark."):
                raise ConfigError("option-value", f"settings: Spark's own begin with 'spark.', and {key!r} does not")
        if "spark.master" in self.settings:
            raise ConfigError("options-conflict", "settings has spark.master, which is `master`: leave it out there")
        if self.session is not None and (self.master != Spark.master or self.settings):
            raise ConfigError(
                "options-conflict", "give a session, or master and settings of the one to start, not both"
            )
        if self.processing_time is not None and self.available_now:
            raise ConfigError("options-conflict", "give processing_time or available_now, not both")
        if self.processing_time is not None and not _SPAN.fullmatch(self.processing_time):
            raise ConfigError(
                "option-value", f"processing_time is a time as '10 seconds', not {self.processing_time!r}"
            )

    def trigger(self) -> dict[str, Any] | None:
        """What `DataStreamWriter.trigger` takes; None where nothing is said."""
        if self.available_now:
            return {"availableNow": True}
        return None if self.processing_time is None else {"processingTime": self.processing_time}

    @contextmanager
    def session_for(self, name: str, doing: str) -> Iterator[SparkSession]:
        """The session that there is, or one for this piece of work, with a temporary folder of its own."""
        if self.session is not None:
            yield cast("SparkSession", self.session)
            return
        from onefold.spark.session import session_of_ones_own, temporary_folder

        with (
            temporary_folder(f"onefold-{doing}-") as scratch,
            session_of_ones_own(name, scratch, self.master, self.settings) as spark,
        ):
            yield spark
