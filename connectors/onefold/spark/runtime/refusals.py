"""What a pipeline on Spark cannot do, as far as its parts alone show it. Needs neither Spark nor any server.

`onefold validate` asks here, and so does whatever starts: both say the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onefold.clients import exposure
from onefold.core import ConfigError, Sink
from onefold.core.values.names import check_pipeline_name
from onefold.core.writing.arrangement import Arrangement, needed_by

if TYPE_CHECKING:
    from onefold.sources.kafka import KafkaSource

__all__ = ["check_direct_sinks", "check_direct_source", "check_parts", "is_direct_for"]


def check_parts(
    pipeline: str, sinks: Sequence[Sink], dead_letters: Sink | None, store: str | None, *, require_tls: bool
) -> None:
    """Raise ConfigError for parts that make no pipeline. `store` is its URL, None where it is not known yet."""
    check_pipeline_name(pipeline)
    everyone = (*sinks, *([] if dead_letters is None else [dead_letters]))
    names = [sink.name for sink in everyone]
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
        exposure.require_tls([(f"sink {sink.name!r}", sink) for sink in everyone])
        if store and (says := exposure.of_url(store, "the checkpoint store's")):
            raise ConfigError("tls-required", f"the checkpoint store may not be reached so, with require_tls: {says}")


def check_direct_source(source: KafkaSource) -> None:
    """Raise ConfigError for a source that the direct path cannot read."""
    if source.deduplicate is not None:
        raise ConfigError(
            "direct-path-unsupported",
            "deduplicate needs Spark's state, and on the direct path the task that writes has none: use"
            " pipeline.read and pipeline.write; in a flow, stream.deduplicate(...)",
        )


def check_direct_sinks(source: KafkaSource, sinks: Sequence[Sink]) -> None:
    """Raise ConfigError for sinks that need rows moved: the direct path has whole ranges of a partition in a task."""
    for sink in sinks:
        need = needed_by(sink)
        if not _meets(source, need):
            raise ConfigError(
                "direct-path-unsupported",
                f"sink {sink.name!r} wants the rows of one {', '.join(need.partition_by)} in one task, and the direct"
                " path moves no rows between tasks: use pipeline.read and pipeline.write, or let the sink do without"
                " (delivery='staged' in Postgres; in HBase and Kafka repartition=False, where those rows are in one"
                " task already)",
            )


def is_direct_for(source: KafkaSource, sinks: Sequence[Sink]) -> bool:
    """Whether the direct path can carry this source to these sinks, as far as is known before they are opened."""
    return source.deduplicate is None and all(_meets(source, needed_by(sink)) for sink in sinks)


def _meets(source: KafkaSource, need: Arrangement) -> bool:
    """Whether rows come in this arrangement already: a task has whole ranges of partitions, in their order."""
    from onefold.sources.kafka.formats.columns import places_of

    if not need.moves_rows:
        return True
    *place, offset = places_of(source.format, source.columns) or (None,)
    named = {*need.partition_by} | ({"kafka_topic"} if "kafka_topic_id" in need.partition_by else set())
    return bool(place) and {*place} <= named and need.order_by in ((), (offset,))
