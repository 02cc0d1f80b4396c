"""What a pipeline on Spark cannot do, as far as its parts alone show it. Needs neither Spark nor any server.

`onefold validate` asks here, and so does whatever starts: both say the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from onefold.clients import exposure
from onefold.core import ConfigError, Sink
from onefold.core.source import Source
from onefold.core.values.names import check_pipeline_name

__all__ = ["check_parts"]


def check_parts(
    pipeline: str, sinks: Sequence[Sink], store: str | None, sources: Sequence[Source] = (), *, require_tls: bool
) -> None:
    """Raise ConfigError for parts that make no pipeline. `store` is its URL, None where it is not known yet."""
    check_pipeline_name(pipeline)
    names = [sink.name for sink in sinks]
    if not sinks or len(set(names)) != len(names):
        raise ConfigError(
            "sink-names",
            f"a pipeline needs one sink or more, each with its own name; given: {names or 'none'}"
            + (
                '. A sink is called as its table or topic unless it says otherwise: give one name="..."'
                if names
                else ""
            ),
        )
    if require_tls:
        exposure.check_reached(sources, sinks, store or "")
