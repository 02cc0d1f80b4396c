"""All of a pipeline in one value: written in Python, or read from a TOML file. Every command takes either."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onefold.core.extras import on_demand

if TYPE_CHECKING:
    from onefold.definition.definition import Definition
    from onefold.definition.parts import Restart, SparkSettings, Transform, Trigger
    from onefold.definition.reading import read

__all__ = ["Definition", "Restart", "SparkSettings", "Transform", "Trigger", "read"]

__getattr__ = on_demand(
    __name__,
    {
        "Definition": "onefold.definition.definition",
        "Restart": "onefold.definition.parts",
        "SparkSettings": "onefold.definition.parts",
        "Transform": "onefold.definition.parts",
        "Trigger": "onefold.definition.parts",
        "read": "onefold.definition.reading",
    },
)


def __dir__() -> list[str]:
    return __all__
