"""Lets a new pipeline begin exactly where another job has stopped: a query of Spark's own, by its checkpoint, or the
members of a consumer group, by what they have committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

from onefold.clients.files import FileSystems
from onefold.core import ConfigError, DataLoss, Positions
from onefold.core.protocol.effects import StoreFacts
from onefold.core.values.plain import shown_url
from onefold.flow.planning import check_read, initial_of
from onefold.operate.stopped import StoppedPipeline
from onefold.pipeline import Pipeline
from onefold.sources import KafkaSource
from onefold.sources.kafka import wanted_positions
from onefold.sources.kafka.offsets import OffsetSnapshot
from onefold.sources.kafka.planning.moving import WantedPositions
from onefold.store.job.offset_log import positions_in


def begin_after_query(stopped: StoppedPipeline, root: str, ask: Callable[[Positions], None]) -> None:
    """Settle that the pipeline's first start begins where the query stopped whose checkpoint is at `root`; asks first.
    A partition that the query has not seen begins at its first record.

    Raises ConfigError where the pipeline was started before, the query's last batch is not done, or the two do not read
    the same topics; DataLoss where Kafka no longer has the next records.
    """
    facts, who = _new(stopped), f"the query at {shown_url(root)}"
    end, sources = query_end(stopped.files, root), stopped.pipeline.flow.sources()
    try:
        check_read(stopped.name, sources, end)
    except ConfigError as error:
        read = ", ".join(sorted(end.topics()) or [name for name, _ in end.items])
        raise error.reworded(
            f"{who} has read {read}, and the sources of pipeline {stopped.name!r} do not read all of it: what comes"
            " after would be left out. Nothing was moved. Let the pipeline read the same topics"
        ) from None
    _begin(stopped, facts, end, who, ask)


def begin_after_group(stopped: StoppedPipeline, group: str, ask: Callable[[Positions], None]) -> None:
    """The same where a consumer group has committed how far it has read. What it has read of other topics does not
    matter. Raises ConfigError, too, where it has members, or has committed nothing."""
    facts = _new(stopped)
    _begin(stopped, facts, group_end(stopped.pipeline, group), f"consumer group {group!r}", ask)


def _new(stopped: StoppedPipeline) -> StoreFacts:
    """Raises ConfigError where the pipeline was started before, or reads something else than topics."""
    facts, sources = stopped.find() or StoreFacts("", 0), stopped.pipeline.flow.sources()
    if facts.frozen is not None or facts.last is not None or facts.unfinished:
        raise ConfigError(
            "pipeline-not-new",
            f"pipeline {stopped.name!r} was started before, and goes on where it stands. Nothing was moved. Give it"
            " another name, or `onefold reset` it",
        )
    if len(stopped.pipeline.topics) < len(sources):
        raise ConfigError(
            "topics-only",
            f"pipeline {stopped.name!r} reads {', '.join(source.name for source in sources)}: only of topics another"
            " job's positions say how far they were read",
        )
    return facts


def _begin(
    stopped: StoppedPipeline, facts: StoreFacts, end: Positions, who: str, ask: Callable[[Positions], None]
) -> None:
    begin = Positions()
    for source in stopped.pipeline.topics:
        named = [f"{topic}:{number}={at}" for topic, of in end.topics().items() for number, at in of.items()]
        mine = [text for text in named if source.covers(text.rpartition(":")[0] + "/0")]
        found = _found(source, mine, who)
        if unread := sorted({topic for topic, _ in found.first} - end.topics().keys()):
            raise ConfigError(
                "query-not-read",
                f"source {source.name!r} reads {', '.join(unread)}, of which {who} has read nothing: where that begins"
                " nobody can say. Nothing was moved. Let the source read the topics of the other job",
            )
        begin = begin.beside(found.positions)
    ask(begin)
    stopped.refuse_changed(facts)
    with closing(stopped.session()) as session:
        session.start(initial_of(stopped.name, stopped.pipeline.flow.sources(), facts, begin))


def _found(source: KafkaSource, named: Sequence[str], who: str) -> WantedPositions:
    try:
        return wanted_positions(source, Positions(), named)
    except ConfigError as error:
        if error.code != "position-outside-partition":
            raise
        raise DataLoss(
            "query-records-gone",
            f"{who} stopped where Kafka has nothing any more, or nothing yet"
            f" ({error.message.partition('. ')[0].removeprefix('--set ')}): the next records were deleted by retention,"
            " or the topic is another one. Nothing was moved. Begin elsewhere, by starting_offsets",
        ) from error


def group_end(pipeline: Pipeline, group: str) -> Positions:
    """What the group has committed of the pipeline's topics; of a partition that it has not seen, its first record.
    Raises ConfigError where it has members, which may commit more, or has committed nothing."""
    end = Positions()
    for source in pipeline.topics:
        broker = source.broker()
        topics = source.subscription.find(broker, ())
        there = [(topic, number) for topic, found in sorted(topics.items()) for number in found.partitions]
        has_members, committed = broker.group(group, there)
        if has_members:
            raise ConfigError(
                "group-has-members",
                f"consumer group {group!r} has members: where they stop nobody can say. Nothing was done. Stop that"
                " job, so that it commits how far it has written, then run the command again (one that was killed is a"
                " member until its session.timeout.ms is over)",
            )
        known = {topic for topic, _ in committed}
        first = broker.earliest([partition for partition in there if partition[0] in known])
        end = end.beside(OffsetSnapshot({**first, **committed}).positions())
    if not end.items:
        raise ConfigError(
            "group-unknown",
            f"consumer group {group!r} has committed nothing of {', '.join(each.name for each in pipeline.topics)}."
            " Nothing was done. Give the job's group.id (Kafka Connect's is connect-NAME); one that keeps its offsets"
            " elsewhere is begun after by starting_offsets",
        )
    return end


def query_end(files: FileSystems, root: str) -> Positions:
    """Where the query stopped, after its last batch. Raises ConfigError where that is not done, or there is no query's
    checkpoint."""
    planned, done = (
        [int(name) for name in files.names(f"{root}/{log}") if name.isdigit()] for log in ("offsets", "commits")
    )
    if not planned:
        raise ConfigError(
            "not-a-checkpoint",
            f"{shown_url(root)} is no checkpoint of a query that has run: it has no offsets/N. Name the query's"
            " checkpointLocation itself",
        )
    last = max(planned)
    if last not in done:
        raise ConfigError(
            "query-unfinished",
            f"the query at {shown_url(root)} has begun batch {last}, and has not said that it is done: whether its rows"
            " were written nobody can know. Nothing was moved. Start the query once more, with the trigger"
            " availableNow, and let it end",
        )
    path = f"{root}/offsets/{last}"
    text = files.read(path)
    if text is None:
        raise ConfigError("not-a-checkpoint", f"{shown_url(path)} is gone: does something delete files there?")
    return positions_in(text, path)
