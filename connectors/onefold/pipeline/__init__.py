"""A flow with where and how it runs: written in Python, or read from a TOML file. Every command takes either."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onefold.core.extras import on_demand

if TYPE_CHECKING:
    from onefold.core.restart import Restart
    from onefold.engine.asking.reader import StateReader
    from onefold.pipeline.file import read
    from onefold.pipeline.pipeline import Pipeline
    from onefold.pipeline.runtimes import Engine, Spark

__all__ = ["Engine", "Pipeline", "Restart", "Spark", "StateReader", "read"]

__getattr__ = on_demand(
    __name__,
    {
        "Engine": "onefold.pipeline.runtimes",
        "Pipeline": "onefold.pipeline.pipeline",
        "Restart": "onefold.core.restart",
        "Spark": "onefold.pipeline.runtimes",
        "StateReader": "onefold.engine.asking.reader",
        "read": "onefold.pipeline.file",
    },
)


def __dir__() -> list[str]:
    return __all__
