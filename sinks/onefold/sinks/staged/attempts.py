"""Staged attempts: how they are named, and whether what a manifest names is there."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence

from onefold.core.contract import Committable, SinkKind
from onefold.core.errors import WorkLost


def attempt_number(attempt: uuid.UUID) -> int:
    """An attempt as a bigint that is never negative: the stage's rows carry it, and 8 bytes are half of 16."""
    return attempt.int & (2**63 - 1)


def digest(columns: object) -> str:
    """What a stage's name ends with, by the `repr` of its columns: a zombie that opens the sink for other rows makes a
    stage of its own, and the live driver's stays."""
    return hashlib.sha256(repr(columns).encode()).hexdigest()[:12]


def handle(stage: str, attempt: int) -> str:
    return f"{stage}/{attempt}"


def leftover(sink: str, stage: str, attempt: int, generation: int, epoch: int) -> Committable:
    """A listed attempt, to be aborted unless a manifest names it."""
    return Committable(sink, SinkKind.LAST_RESOURCE, handle(stage, attempt), generation, epoch, 0)


def by_stage(committables: Sequence[Committable]) -> dict[str, dict[int, int]]:
    """Stage -> attempt -> rows, from the handles."""
    found: dict[str, dict[int, int]] = {}
    for committable in committables:
        stage, _, attempt = committable.handle.rpartition("/")
        found.setdefault(stage, {})[int(attempt)] = committable.rows
    return found


def check_listed(
    where: str, stage: str, wanted: Mapping[int, int], listed: Mapping[int, int], is_emptied: bool
) -> None:
    """Before the decision. Raises WorkLost unless every attempt is listed with its rows, in a stage that has some."""
    if listed != wanted or is_emptied:
        raise WorkLost(
            "stage-emptied",
            f"{where}: stage {stage} holds {'no rows' if is_emptied else 'other rows'}, with {len(listed)} of"
            f" {len(wanted)} attempts listed: a crash of the server may empty it. The epoch's writers must run again",
        )


def check_moved(where: str, moved: int, expected: int) -> None:
    """Inside the decision's transaction. Raises WorkLost unless exactly the manifest's rows were moved."""
    if moved != expected:
        raise WorkLost(
            "stage-rows-missing",
            f"{where}: the merge moved {moved} rows, and the manifest says {expected}. Nothing was decided; the epoch's"
            " writers must run again. (A crash of the server may empty the stage; a trigger that drops rows shows as"
            " the same)",
        )
