"""Makes a savepoint of a query: a copy of its checkpoint."""

from __future__ import annotations

from contextlib import closing
from importlib.metadata import version

from onefold.core import CheckpointMismatch, ConfigError, EpochRecord
from onefold.core.positions import CLOCKS, Relation
from onefold.core.protocol.effects import StoreFacts
from onefold.core.protocol.runs import refuse_query
from onefold.core.values.plain import shown_url
from onefold.engine.savepoints.savepoint import CHECKPOINT, QueryCheckpoint, Savepoint
from onefold.operate.savepoint.checkpoint_files import CheckpointStanding, belonging, has_state, standing
from onefold.operate.savepoint.making import being_made, refuse_taken
from onefold.operate.stopped import StoppedPipeline
from onefold.store.job.move_session import MoveSession
from onefold.store.savepoint_notes import MADE, note_savepoint


def create_of_query(stopped: StoppedPipeline, name: str | None, folder: str) -> Savepoint:
    """Finish what the pipeline had begun, then copy its checkpoint to `folder`/`name`. A driver that lives is fenced.

    Raises ConfigError where it has written nothing or the name is taken, CheckpointMismatch where its checkpoint is not
    at the end of its last epoch.
    """
    pipeline, files = stopped.pipeline, stopped.files
    root, there = pipeline.checkpoint, files.of(folder)
    if name is not None:  # before a generation is taken
        refuse_taken(there, folder, name)
    with closing(stopped.session()) as session:
        facts, last, stands = at_rest(stopped, session)
        with being_made(there, folder, name, last.epoch) as making:
            source = files.of(root)
            paths = belonging(source.below(root), stands.batch_id)
            for path in paths:
                making.keep(CHECKPOINT, path, source.read(root, path))
            savepoint = making.describe_pipeline(
                session.store,
                facts,
                last,
                facts.generation,
                query=QueryCheckpoint(
                    spark=version("pyspark"),
                    query_id=stands.query_id,
                    batch_id=stands.batch_id,
                    partitions=stands.partitions,
                    provider=stands.provider if has_state(paths) else None,
                ),
            )
            if session.facts().generation != facts.generation:
                raise ConfigError(
                    "pipeline-may-run", f"pipeline {pipeline.name!r} was started meanwhile: stop it, then try again"
                )
        session.patience.retry(
            lambda: note_savepoint(session.store, session.name, making.name, last.epoch, MADE), "noting the savepoint"
        )
        return savepoint


def at_rest(stopped: StoppedPipeline, session: MoveSession) -> tuple[StoreFacts, EpochRecord, CheckpointStanding]:
    """Take the pipeline over. Where it stands, and its checkpoint, which is there, too. Raises CheckpointMismatch."""
    pipeline = stopped.pipeline
    facts, _ = session.take_over()
    refuse_query(facts, pipeline.name)
    last = _last(pipeline.name, facts)
    clocks = tuple(name for name, _ in last.range.end.items if name in CLOCKS)
    stands = session.drive(standing(pipeline.checkpoint, clocks))
    if stands is None or stands.end.relation_to(last.range.end) is not Relation.SAME:
        raise _not_at_end(pipeline.name, pipeline.checkpoint, last, stands)
    return facts, last, stands


def _last(pipeline: str, facts: StoreFacts) -> EpochRecord:
    if facts.begun is not None:
        raise CheckpointMismatch(
            "savepoint-not-at-rest",
            f"epoch {facts.begun.epoch} of pipeline {pipeline!r} was begun in a sink that writes through, and must run"
            " to its end. Start the pipeline, stop it (SIGTERM), then make the savepoint",
        )
    if facts.last is None:
        raise ConfigError(
            "savepoint-empty", f"pipeline {pipeline!r} has written nothing yet: there is nothing to make a savepoint of"
        )
    return facts.last


def _not_at_end(pipeline: str, root: str, last: EpochRecord, stands: CheckpointStanding | None) -> CheckpointMismatch:
    at = "has no batch that is done" if stands is None else f"is at batch {stands.batch_id}"
    differs = "" if stands is None else f" ({stands.end.differences(last.range.end)})"
    return CheckpointMismatch(
        "savepoint-not-at-rest",
        f"the checkpoint {shown_url(root)} of pipeline {pipeline!r} {at}, which is not the end of its last epoch,"
        f" {last.epoch}{differs}: its driver ended between the two. Start the pipeline, stop it (SIGTERM), then make"
        " the savepoint",
    )
