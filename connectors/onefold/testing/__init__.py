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

_MODULES = {
    "INVARIANTS": "onefold.core.invariants",
    "BrokenPromise": "onefold.core.testing",
    "ConformanceReport": "onefold.core.testing",
    "ContainerError": "onefold.testing.container_errors",
    "Cut": "onefold.testing.containers.cut",
    "Evidence": "onefold.core.invariants",
    "ExternalServer": "onefold.testing.servers",
    "HBaseContainer": "onefold.testing.containers.hbase",
    "KafkaContainer": "onefold.testing.containers.kafka",
    "Network": "onefold.testing.containers.network",
    "PostgresContainer": "onefold.testing.containers.postgres",
    "ServerKind": "onefold.testing.servers",
    "Servers": "onefold.testing.servers",
    "SparkContainers": "onefold.testing.containers.spark",
    "check_sink": "onefold.core.testing",
    "server_kind": "onefold.testing.servers",
    "violations": "onefold.core.invariants",
}


def __getattr__(name: str) -> object:
    """pytest imports this package at every start, of suites too that use nothing of it: so even this is on demand."""
    from onefold.core.extras import on_demand

    return on_demand(__name__, _MODULES)(name)


def __dir__() -> list[str]:
    return __all__
