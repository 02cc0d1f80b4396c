"""How long state lives: what users say of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from onefold.core.errors import ConfigError
from onefold.core.values.durations import duration_us
from onefold.flow.time.windows import SIZE_US_MAX

TtlUpdate: TypeAlias = Literal["write", "read_and_write"]
TtlVisibility: TypeAlias = Literal["never_expired", "until_cleaned"]
TtlClock: TypeAlias = Literal["processing", "event"]
_CHOICES = {"update": TtlUpdate, "visible": TtlVisibility, "clock": TtlClock}


@dataclass(frozen=True, slots=True)
class Ttl:
    """How long each entry of a state lives: a key's value, an element of its list, an entry of its map. Raises
    ConfigError for a duration that is none.

    duration  such as "1 day": from a millisecond on
    update    since when it counts: "write", the last write; "read_and_write": the last read, too
    visible   "never_expired": what has expired is not seen any more; "until_cleaned": it is until it is removed
    clock     "processing": the epoch's time; "event": the watermark at the epoch's begin
    """

    duration: str
    update: TtlUpdate = "write"
    visible: TtlVisibility = "never_expired"
    clock: TtlClock = "processing"

    def __post_init__(self) -> None:
        if not 0 < duration_us(self.duration, "Ttl(duration)") < SIZE_US_MAX:
            raise ConfigError("option-value", f"Ttl({self.duration!r:.100}): state lives for a millisecond at least")
        for name, choices in _CHOICES.items():
            if (given := getattr(self, name)) not in get_args(choices):
                raise ConfigError("option-value", f"Ttl: {name}={given!r:.100} is {' or '.join(get_args(choices))}")

    @property
    def ms(self) -> int:
        return duration_us(self.duration, "Ttl(duration)") // 1_000

    def __str__(self) -> str:
        given = ((name, getattr(self, name)) for name in _CHOICES)
        return ", ".join((self.duration, *(value for name, value in given if value != getattr(_DEFAULT, name))))


_DEFAULT = Ttl("1 day")


def check_ttl(label: str, ttl: Ttl | None, ttl_ms: int | None = None) -> Ttl | None:
    """The time to live of what `label` names, which Spark's handles have in milliseconds. Raises ConfigError for what
    is none."""
    if ttl_ms is not None and ttl is None and type(ttl_ms) is int and ttl_ms > 0:
        return Ttl(f"{ttl_ms} milliseconds")
    if ttl_ms is not None or not isinstance(ttl, Ttl | None):
        raise ConfigError(
            "option-value",
            f"{label} has ttlDurationMs={ttl_ms!r:.100} and ttl={ttl!r:.100}: give one of them, a number above 0"
            " or such as Ttl('1 day')",
        )
    return ttl
