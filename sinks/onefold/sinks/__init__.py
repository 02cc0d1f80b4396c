"""Where a pipeline's rows go. Each sink says in `guarantee()` what it promises, and under which conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onefold.sinks.postgres import PostgresSink

__all__ = ["PostgresSink"]


def __getattr__(name: str) -> object:
    # A sink's driver is imported when the sink is asked for: nobody needs psycopg to write to Kafka.
    if name == "PostgresSink":
        from onefold.sinks.postgres import PostgresSink

        return PostgresSink
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
