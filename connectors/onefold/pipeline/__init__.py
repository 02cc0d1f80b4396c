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

__getattr__, __dir__ = on_demand(
    __name__,
    {
        "onefold.pipeline.runtimes": ("Engine", "Spark"),
        "onefold.pipeline.pipeline": ("Pipeline",),
        "onefold.core.restart": ("Restart",),
        "onefold.engine.asking.reader": ("StateReader",),
        "onefold.pipeline.file": ("read",),
    },
)
