"""Pipelines where a command finds them."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from onefold.core import Sink
from onefold.core.source import Source
from onefold.flow import Flow
from onefold.pipeline import Pipeline
from onefold.sources import KafkaSource

__all__ = ["into", "named", "piped"]


def piped(
    name: str,
    *,
    source: Source,
    sinks: Sequence[Sink],
    change: Callable[[Any], Any] = lambda stream: stream,
    dead_letters: Sink | None = None,
    **more: Any,
) -> Pipeline:
    """A pipeline from a source through `change` into sinks; `more` is what `Pipeline` takes."""
    flow = Flow(name)
    stream = change(flow.source(source, uid="source", dead_letters=dead_letters))
    for sink in sinks:
        stream.sink(sink)
    return Pipeline(flow, **more)


def named(pipeline: Pipeline) -> str:
    """What a command in this process takes for that pipeline."""
    module = ModuleType(f"defined_{uuid.uuid4().hex}")
    module.__dict__["pipeline"] = pipeline
    sys.modules[module.__name__] = module
    return f"{module.__name__}:pipeline"


def into(*sinks: Sink, name: str = "p", **more: Any) -> str:
    """The same for a pipeline into these sinks, for commands that ask nothing of its source."""
    source = KafkaSource("nowhere", bootstrap_servers="127.0.0.1:1", format="json", schema="id long, n long")
    return named(piped(name, source=source, sinks=sinks, directory="/nowhere", **more))
