"""Writes a savepoint: its files, then its description, under another name until it is whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version

import pyarrow as pa

from onefold.clients.files import FileSystem
from onefold.core import ConfigError, EpochRecord
from onefold.core.failpoints import failpoint
from onefold.core.protocol.effects import StoreFacts
from onefold.core.values.plain import shown_url
from onefold.engine.dataflow.chains import Plan
from onefold.engine.savepoints.saved_tables import SavedTable, to_file
from onefold.engine.savepoints.savepoint import (
    DESCRIPTION,
    PARTIAL,
    STATE,
    CopiedFile,
    Counted,
    FlowState,
    QueryCheckpoint,
    SavedState,
    Savepoint,
    carried,
)
from onefold.engine.state import folder_of
from onefold.pipeline import Engine, Pipeline
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.pins import all_pins

_JOURNALS = "journals.parquet"  # a name that no operator's folder has


@dataclass
class Making:
    """A savepoint that is being made, and where its files go until it is whole."""

    name: str
    made_at: str
    there: FileSystem
    partial: str
    files: list[CopiedFile] = field(default_factory=list)

    def keep(self, folder: str, path: str, content: Iterator[bytes]) -> None:
        """Write one of its files into that folder of it."""
        count = Counted()
        self.there.write(self.partial, f"{folder}/{path}", count.of(content))
        self.files.append(CopiedFile(path, count.bytes, count.sha256))

    def keep_flow(
        self, pipeline: Pipeline, plan: Plan, tables: Iterable[SavedTable], journals: Sequence[tuple[str, str, str]]
    ) -> FlowState:
        """Write the tables of a flow's states, and the texts of its sources by their source and name."""
        states: dict[tuple[str, str, str], SavedState] = {}
        for saved in tables:
            spec = saved.spec
            of = spec.uid, spec.name, spec.kind.value
            before = states.get(of, SavedState(*of, saved.keys, 0, ()))
            path = f"{folder_of(spec.uid)}/{folder_of(spec.name)}-{spec.kind.value}-{len(before.files)}.parquet"
            self._keep_table(path, saved.table)
            states[of] = SavedState(*of, saved.keys, before.rows + len(saved.table), (*before.files, path))
        if journals:
            columns = [*map(list, zip(*journals, strict=True))]
            self._keep_table(_JOURNALS, pa.table(columns, names=["source", "name", "text"]))
        runtime = "engine" if isinstance(pipeline.runtime, Engine) else "spark"
        return FlowState(runtime, plan.graph.max_parallelism, tuple(states.values()), _JOURNALS if journals else None)

    def _keep_table(self, path: str, table: pa.Table) -> None:
        self.keep(STATE, path, iter([to_file(table).to_pybytes()]))

    def describe(self, savepoint: Savepoint) -> Savepoint:
        """Write what it is, once all of its files are."""
        self.there.write(self.partial, DESCRIPTION, [savepoint.to_json().encode()])
        return savepoint

    def describe_pipeline(
        self,
        store: CheckpointStore,
        facts: StoreFacts,
        last: EpochRecord,
        generation: int,
        *,
        query: QueryCheckpoint | None = None,
        flow: FlowState | None = None,
    ) -> Savepoint:
        """As `describe`, of a pipeline that stands at the end of its last epoch."""
        return self.describe(
            Savepoint(
                name=self.name,
                made_at=self.made_at,
                pipeline=last.pipeline,
                onefold=version("onefold"),
                store_id=facts.store_id,
                generation=generation,
                epoch=last.epoch,
                timestamp_ms=last.timestamp_ms,
                fingerprint=last.fingerprint,
                positions=last.range.end,
                frozen=facts.frozen,
                pins=carried(all_pins(store, last.pipeline)),
                files=tuple(self.files),
                query=query,
                flow=flow,
            )
        )


@contextmanager
def being_made(there: FileSystem, folder: str, name: str | None, epoch: int) -> Iterator[Making]:
    """By default it is called after its epoch and the time. It is there once the block has ended, and nothing of it
    where that fails. Raises ConfigError where the name is taken."""
    now = datetime.now(UTC)
    name = name or f"epoch-{epoch}-{now:%Y%m%d-%H%M%S}"
    place, partial = f"{folder}/{name}", f"{folder}/{name}{PARTIAL}"
    refuse_taken(there, folder, name)
    there.remove(partial)
    try:
        yield Making(name, now.isoformat(timespec="seconds"), there, partial)
        failpoint("savepoint:copied")
        there.rename(partial, place)
    except BaseException:
        there.remove(partial)
        raise


def refuse_taken(there: FileSystem, folder: str, name: str) -> None:
    """Raise ConfigError where there is one of that name already."""
    if there.exists(place := f"{folder}/{name}"):
        raise ConfigError(
            "savepoint-exists",
            f"there is a savepoint {name!r} already, in {shown_url(place)}: give this one another name",
        )
