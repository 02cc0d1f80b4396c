"""Puts a savepoint that is a query's checkpoint in the place of a pipeline's."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from onefold.clients.files import FileSystem, is_local, local_path
from onefold.core import CheckpointMismatch, ConfigError, EpochRecord, Generation
from onefold.core.checks import present
from onefold.core.failpoints import failpoint
from onefold.core.moves import Repeats
from onefold.core.protocol.beginning import begin_at, take
from onefold.core.protocol.effects import StoreFacts
from onefold.core.values.plain import shown_url
from onefold.core.values.remedies import RESET
from onefold.engine.savepoints.savepoint import damaged, read_copy
from onefold.operate.positions import plan_to
from onefold.operate.savepoint.checkpoint_files import (
    check_repartition,
    names_schemas,
    repartition,
    with_query_id,
    with_schemas_below,
)
from onefold.operate.savepoint.restore import Restore
from onefold.operate.stopped import REPLACED, RESTORING
from onefold.store.job.move_session import MoveSession
from onefold.store.savepoint_notes import Restoring, note_restored, note_restoring, restoring


@dataclass(frozen=True)
class QueryRestore(Restore):
    """Of a query's checkpoint: `partitions` is the number that its state is to have."""

    partitions: int | None = None

    def check(self) -> None:
        if self.partitions is not None:
            check_repartition(self.savepoint, self.partitions)

    def into_same(self) -> None:
        root, name = self._root(), self.stopped.name
        with closing(self.stopped.session(set_aside=lambda _: self._swap(root))) as session:
            half = self._half(session)
            generation = session.drive(session.lifecycle.start(None)).generation
            facts = session.facts()
            goes_back = self.goes_back(facts)
            if goes_back:
                self._check_back(facts, session.store.moves(name))
            self._stage(root)
            self._note(session, generation, half)
            if goes_back:
                session.move(self.savepoint.positions, self.move_note())
            else:
                self._swap(root)
            self._note_done(session, generation)

    def into_new(self) -> None:
        origin = self.origin()
        root, pipeline = self._root(), self.stopped.pipeline
        with closing(self.stopped.session()) as session:
            half = self._half(session)
            if half is None and self._files(root).exists(root):
                raise ConfigError(
                    "checkpoint-exists",
                    f"the checkpoint {shown_url(root)} of pipeline {pipeline.name!r} is there already, and a"
                    " savepoint is restored into a pipeline that was never started. Nothing was changed: name another"
                    " checkpoint, or remove that one",
                )
            again = half is not None
            generation, store_id = session.drive(take(origin, session.names, again))
            self._stage(root, str(uuid.uuid4()))
            self._note(session, generation, half)
            self.note_beginning(session, generation)
            self._swap(root)
            session.drive(begin_at(origin, generation, store_id, session.names))
            session.accept_targets(generation)
            self.pin_carried(session)
            failpoint("restore:begun")
            self._note_done(session, generation)

    def _half(self, session: MoveSession) -> Restoring | None:
        """The restore that was cut short before, which must be of this savepoint."""
        half = restoring(session.store, session.name)
        if half is not None and half.digest != self.savepoint.digest:
            raise CheckpointMismatch(
                "restore-unfinished",
                f"the restore of savepoint {half.name!r} (in {half.place}) into pipeline {session.name!r} was cut"
                " short: restore that one again, or `onefold reset` the pipeline, before another one",
            )
        return half

    def _check_back(self, facts: StoreFacts, moves: Sequence[EpochRecord]) -> None:
        """Raise ConfigError where records that come again would be in a sink twice, or would not make it whole."""
        plan = plan_to(self.stopped, facts, moves, self.savepoint.positions)
        empty = [sink for sink, repeats in plan.again.items() if repeats is Repeats.NEW]
        if empty and self.savepoint.keeps_state:
            raise ConfigError(
                "savepoint-sink-empty",
                f"what sink {empty[0]!r} of pipeline {self.stopped.name!r} writes to is empty, and a query with state"
                " writes what changes: what the savepoint's records have made would be missing there. Nothing was"
                f" changed. Put back the rows that it had, or {RESET}",
            )

    def _stage(self, root: str, query_id: str | None = None) -> None:
        """A whole checkpoint beside the one that it replaces. Raises ConfigError where the savepoint is damaged."""
        staged = root + RESTORING
        source, target = self._files(self.place), self._files(root)
        target.remove(staged)
        try:
            for file in self.savepoint.files:
                target.write(staged, file.path, read_copy(source, self.place, self.savepoint, file))
            if query_id is not None:
                text = b"".join(target.read(staged, "metadata")).decode()
                target.write(staged, "metadata", [with_query_id(text, query_id).encode()])
            failpoint("restore:staged")
            wanted = self.partitions
            if wanted is not None and wanted != present(self.savepoint.query, "it is a query's").partitions:
                _name_schemas(target, staged, staged)
                repartition(self.stopped.files.spark(), staged, self.savepoint, wanted)
            _name_schemas(target, staged, root)
        except (ValueError, TypeError, RecursionError) as damage:  # Damage, or a file that is no JSON any more
            target.remove(staged)
            raise damaged(self.savepoint, damage) from damage
        except BaseException:
            target.remove(staged)
            raise

    def _note(self, session: MoveSession, generation: Generation, half: Restoring | None) -> None:
        note_restoring(
            session.store, generation, half or Restoring(self.savepoint.name, self.place, self.savepoint.digest)
        )
        failpoint("restore:noted")

    def _note_done(self, session: MoveSession, generation: Generation) -> None:
        self.note(session)
        note_restored(session.store, generation)

    def _swap(self, root: str) -> None:
        """The staged checkpoint in the place of the old one, which goes."""
        files, replaced = self._files(root), root + REPLACED
        if files.exists(root):
            files.remove(replaced)
            files.rename(root, replaced)
        failpoint("restore:removed")
        files.rename(root + RESTORING, root)
        failpoint("restore:swapped")
        files.remove(replaced)

    def _files(self, place: str) -> FileSystem:
        return self.stopped.files.of(place)

    def _root(self) -> str:
        """The checkpoint's own folder, where the pipeline names a link to it."""
        root = self.stopped.pipeline.checkpoint.rstrip("/")
        return str(local_path(root).resolve()) if is_local(root) else root


def _name_schemas(files: FileSystem, staged: str, root: str) -> None:
    """What names other files of the checkpoint by their whole paths names those below `root`."""
    url = f"file:{local_path(root)}" if is_local(root) else root
    for path in files.below(staged):
        if names_schemas(path):
            text = b"".join(files.read(staged, path)).decode()
            folder, _, name = f"{staged}/{path}".rpartition("/")
            files.remove(f"{folder}/.{name}.crc")  # Hadoop's checksum of what it was, if Spark has written it
            files.write(staged, path, [with_schemas_below(text, url).encode()])
