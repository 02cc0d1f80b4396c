"""For tests of connectors and pipelines: what proves a sink or a store, and real servers that can be struck.

`check_sink` crashes a connector everywhere. The servers run in containers; those of onefold.local have
the same attributes and run without. docs/testing.md is the page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onefold.core.invariants import INVARIANTS, Evidence, violations
    from onefold.core.testing import BrokenPromise, ConformanceReport, check_sink
    from onefold.testing.container_errors import ContainerError
    from onefold.testing.containers.cut import Cut
    from onefold.testing.containers.hbase import HBaseContainer
    from onefold.testing.containers.kafka import KafkaContainer
    from onefold.testing.containers.network import Network
    from onefold.testing.containers.postgres import PostgresContainer
    from onefold.testing.containers.spark import SparkContainers
    from onefold.testing.servers import ExternalServer, ServerKind, Servers, server_kind

__all__ = [
    "INVARIANTS",
    "BrokenPromise",
    "ConformanceReport",
    "ContainerError",
    "Cut",
    "Evidence",
    "ExternalServer",
    "HBaseContainer",
    "KafkaContainer",
    "Network",
    "PostgresContainer",
    "ServerKind",
    "Servers",
    "SparkContainers",
    "check_sink",
    "server_kind",
    "violations",
]

_NAMES = {
    "onefold.core.invariants": ("INVARIANTS", "Evidence", "violations"),
    "onefold.core.testing": ("BrokenPromise", "ConformanceReport", "check_sink"),
    "onefold.testing.container_errors": ("ContainerError",),
    "onefold.testing.containers.cut": ("Cut",),
    "onefold.testing.servers": ("ExternalServer", "ServerKind", "Servers", "server_kind"),
    "onefold.testing.containers.hbase": ("HBaseContainer",),
    "onefold.testing.containers.kafka": ("KafkaContainer",),
    "onefold.testing.containers.network": ("Network",),
    "onefold.testing.containers.postgres": ("PostgresContainer",),
    "onefold.testing.containers.spark": ("SparkContainers",),
}


def __getattr__(name: str) -> object:
    """pytest imports this package at every start, of suites too that use nothing of it: so even this is on demand."""
    from onefold.core.extras import on_demand

    find, _ = on_demand(__name__, _NAMES)
    return find(name)


def __dir__() -> list[str]:
    return __all__
