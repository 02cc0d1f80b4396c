"""What a daemon shows of a pipeline, and a host must find as it was: a file may change between the two."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from onefold.pipeline import Engine, Pipeline


def identity(pipeline: Pipeline) -> dict[str, str]:
    """Digests of its parts, by their names: passwords may be in them."""
    runtime = pipeline.runtime
    settings = "engine" if isinstance(runtime, Engine) else f"{runtime.master} {sorted(runtime.settings.items())}"
    parts = {
        "name": pipeline.name,
        "runtime": settings,
        "checkpoint": pipeline.checkpoint,
        "store": pipeline.store_url,
        "sources": _named(pipeline.flow.sources()),
        "sinks": _named(pipeline.everyone),
    }
    return {part: hashlib.sha256(value.encode()).hexdigest()[:16] for part, value in parts.items()}


def changed(pipeline: Pipeline, was: Mapping[str, str]) -> list[str]:
    """The names of the parts that are others now."""
    now = identity(pipeline)
    return [part for part, digest in was.items() if now[part] != digest]


def _named(members: tuple[object, ...]) -> str:
    return str([(type(each).__name__, getattr(each, "name", "")) for each in members])
