"""Options that all sources of records have: how large an epoch and a record may be, and what becomes of bad ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from onefold.core.errors import BadRecord, ConfigError
from onefold.sources.formats.values import BadValue

OnError = Literal["fail", "dead_letter", "skip"]

RECORD_BYTES_MAX = 32 << 20
_RECORD_BYTES_LIMIT = 1 << 30  # an Arrow array of values has 2 GiB
_SHOWN_MAX = 200


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    max_bytes_per_trigger: int | None = None
    on_error: OnError = "fail"
    bad_records_max: int = 1000
    record_bytes_max: int = RECORD_BYTES_MAX
    csv_delimiter: str = ","

    @property
    def bad_max(self) -> int:
        """How many records of a task may be bad."""
        return 0 if self.on_error == "fail" else self.bad_records_max

    def check_records(self, *limits: str) -> None:
        """Raise `ConfigError` for a value that makes no sense; also for the fields `limits`, which bound an epoch."""
        for name in ("max_bytes_per_trigger", *limits):
            if (value := getattr(self, name)) is not None and not _is_whole(value, 1):
                raise ConfigError("option-value", f"{name} is a whole number from 1, not {value!r}")
        if self.on_error not in get_args(OnError):
            raise ConfigError(
                "option-value", f"on_error is one of {', '.join(get_args(OnError))}, not {self.on_error!r}"
            )
        if not _is_whole(self.bad_records_max, 0):
            raise ConfigError(
                "option-value",
                f"bad_records_max is how many records of an epoch may be bad: 0 or more, not {self.bad_records_max!r}",
            )
        if not _is_whole(self.record_bytes_max, 1) or self.record_bytes_max > _RECORD_BYTES_LIMIT:
            raise ConfigError(
                "option-value",
                f"record_bytes_max is how many bytes a record may have: 1 to {_RECORD_BYTES_LIMIT}, not"
                f" {self.record_bytes_max!r}",
            )

    def refused(self, at: str, bad: BadValue, value: bytes | None, instead: str = "") -> BadRecord:
        """The error for a bad record where none is allowed, or no more than `bad_records_max`."""
        text = repr(value)
        text = text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}... ({len(value or b'')} bytes)"
        at = f"{at}: {bad.reason}. The record is {text}"
        if self.on_error == "fail":
            return BadRecord(
                "record-unreadable",
                f"{at}. Correct the schema; or say what is to become of such records, with on_error='dead_letter' or"
                f" on_error='skip'{instead}",
            )
        return BadRecord(
            "too-many-bad-records",
            f"more than bad_records_max={self.bad_records_max} records cannot be read. The first beyond: {at}. Nothing"
            " of this epoch was decided. If the schema is right and the records are not, raise bad_records_max",
        )


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
