"""A query's checkpoint directory in memory, as Spark writes it: texts by path."""

from __future__ import annotations

import json
from functools import cache

from onefold.core.checks import require
from onefold.core.errors import Retriable
from onefold.core.positions import FROM, Offset, Positions
from onefold.store.job.offset_json import parse_offsets

ROOT = "checkpoint"
OFFSETS, COMMITS, START = f"{ROOT}/offsets/", f"{ROOT}/commits/", f"{ROOT}/sources/0/0"


class Checkpoint:
    """How far each batch goes, and which are done. Where the stream began, Spark's own sources log; ours say it in
    each batch's end."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {f"{ROOT}/metadata": '{"id":"query"}'}

    def read(self, path: str) -> str | None:
        return self.files.get(path)

    def names(self, folder: str) -> list[str]:
        start = f"{folder}/"
        return [path.removeprefix(start) for path in self.files if path.startswith(start)]

    def plan(self, batch: int, end: Positions, begun: Positions) -> None:
        """Raises Retriable where another process has planned the batch otherwise: Spark fails, and is started again."""
        offsets = " ".join(f"{name.removeprefix('t/')}:{offset}" for name, offset in begun.items)
        end = Positions.of(end.items, {f"t/{FROM}": offsets})
        self._plan(batch, end)

    def plan_of_sparks_own(self, batch: int, end: Positions, start: Positions) -> None:
        self.files.setdefault(START, f"v1\n{format_offsets(start)}")
        self._plan(batch, end)

    def _plan(self, batch: int, end: Positions) -> None:
        text = f"v1\n{{}}\n{format_offsets(end)}"
        if self.files.setdefault(f"{OFFSETS}{batch}", text) != text:
            raise Retriable("batch-planned-elsewhere", f"batch {batch} was planned by another process")

    def replace(self, batch: int, end: Positions) -> None:
        """The same batch with another end; where its stream began stays."""
        path = f"{OFFSETS}{batch}"
        begun = parse_offsets([self.files[path].splitlines()[-1]]).marks
        self.files[path] = f"v1\n{{}}\n{format_offsets(Positions.of(end.items, begun))}"

    def commit(self, batch: int) -> None:
        self.files[f"{COMMITS}{batch}"] = "v1\n{}"

    def forget(self, batch: int) -> None:
        del self.files[f"{OFFSETS}{batch}"]

    @property
    def offsets(self) -> dict[int, Positions]:
        """Where the batches end that are planned."""
        return {
            int(path.removeprefix(OFFSETS)): _end(text) for path, text in self.files.items() if path.startswith(OFFSETS)
        }

    @property
    def begun(self) -> Positions | None:
        """Where the stream began, once a batch is planned."""
        if START in self.files:
            return _end(self.files[START])
        first = self.files.get(f"{OFFSETS}0")
        return None if first is None else parse_offsets([first.splitlines()[-1]]).begun()

    @property
    def commits(self) -> set[int]:
        return {int(path.removeprefix(COMMITS)) for path in self.files if path.startswith(COMMITS)}

    def clear(self) -> None:
        self.files = Checkpoint().files

    def set_aside(self, epoch: int) -> None:
        """It has another name, which says the epoch: nothing here looks at it again."""
        require(epoch >= 0, epoch)
        self.clear()

    def backup(self) -> dict[str, str]:
        return dict(self.files)

    def restore(self, backup: dict[str, str]) -> None:
        self.files = dict(backup)


@cache
def _end(text: str) -> Positions:
    return parse_offsets([text.splitlines()[-1]]).without_begun()


def format_offsets(positions: Positions) -> str:
    """The topics' positions as JSON by topic, with their marks; positions of other sources are left out."""
    topics: dict[str, dict[str, Offset]] = {
        topic: {str(p): o for p, o in sorted(partitions.items())}
        for topic, partitions in sorted(positions.topics().items())
    }
    for name, mark in positions.marks:
        topic, _, kind = name.rpartition("/")
        if topic:
            topics.setdefault(topic, {})[kind] = mark
    return json.dumps(topics, separators=(",", ":"))
