"""What test_optimized.py runs under `python -O`: the checks that a right sink and a right store pass, and wrong ones
fail, and the shortest proof of one configuration."""

from __future__ import annotations

import sqlite3
import sys
from functools import partial

from broken_sinks import CommitsTwice
from broken_stores import FencesNobody
from check_stores import check_store
from sqlite_sink import SqliteSink

from onefold.core import InternalError
from onefold.core.contract import Decided, EpochRecord, EpochState
from onefold.core.positions import Positions, Range
from onefold.core.testing import CONFIGURATIONS, BrokenPromise, check_sink, explore, load
from onefold.core.testing.proof.bounds import ONE_FAULT
from onefold.core.testing.proof.mutants import MUTANTS

SETTINGS = {"steps_max": 2, "moments": 0}


def sink_passes(cls: type[SqliteSink], path: str) -> bool:
    def ask(query: str) -> list[int]:
        with sqlite3.connect(path) as db:
            return [value for (value,) in db.execute(query)]

    try:
        check_sink(
            partial(cls, path),
            rows=lambda: ask("SELECT id FROM rows"),
            prepared=lambda: ask("SELECT count(*) FROM onefold_stage")[0],
            patience_s=10 if cls is SqliteSink else 0.2,
            **SETTINGS,  # type: ignore[arg-type]
        )
    except BrokenPromise:
        return False
    return True


def store_passes(url: str, **settings: object) -> bool:
    try:
        check_store(url, **SETTINGS, **settings)  # type: ignore[arg-type]
    except BrokenPromise:
        return False
    return True


def open_is_decided() -> bool:
    at = Range(Positions(), Positions())
    try:
        Decided(EpochRecord("p", 1, 1, EpochState.OPEN, at, 1, "", 0, ""))
    except InternalError:
        return False
    return True


def main(directory: str) -> None:
    right = explore(CONFIGURATIONS["two-phase"], ONE_FAULT, load())
    wrong = explore(
        CONFIGURATIONS["two-phase"],
        ONE_FAULT,
        load(*MUTANTS[0].patches),
        is_enough=lambda report: bool(report.failures),
    )
    seen = {
        "asserts run": __debug__,
        "an open epoch is decided": open_is_decided(),
        "a right sink passes": sink_passes(SqliteSink, f"{directory}/right.db"),
        "a wrong sink passes": sink_passes(CommitsTwice, f"{directory}/wrong.db"),
        "a right store passes": store_passes(f"sqlite:///{directory}/right_store.db"),
        "a wrong store passes": store_passes(f"sqlite:///{directory}/wrong_store.db", make_store=FencesNobody),
        "the protocol is proven": right.schedules > 100 and not right.failures,
        "a mutant is proven": not wrong.failures,
    }
    print("\n".join(name for name, holds in seen.items() if holds))


if __name__ == "__main__":
    main(sys.argv[1])
