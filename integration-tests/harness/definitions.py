"""Definitions of pipelines where a command finds them."""

from __future__ import annotations

import sys
import uuid
from types import ModuleType
from typing import Any

from onefold.core import Sink
from onefold.pipeline import Definition
from onefold.sources import KafkaSource

__all__ = ["into", "named"]


def named(definition: Definition) -> str:
    """What a command in this process takes for that pipeline."""
    module = ModuleType(f"defined_{uuid.uuid4().hex}")
    module.__dict__["pipeline"] = definition
    sys.modules[module.__name__] = module
    return f"{module.__name__}:pipeline"


def into(*sinks: Sink, name: str = "p", **more: Any) -> str:
    """The same for a pipeline into these sinks, for commands that ask nothing of its source."""
    source = KafkaSource("nowhere", bootstrap_servers="127.0.0.1:1")
    return named(Definition(name, source=source, sinks=sinks, directory="/nowhere", **more))
