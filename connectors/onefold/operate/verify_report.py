"""The report of a verified pipeline: what was compared, its epochs, and how far its sinks are behind its sources."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from functools import partial

from onefold.core import OnefoldError
from onefold.core.values.plain import counted
from onefold.operate.lags import Lags, in_all
from onefold.pipeline import Pipeline
from onefold.report.page import Report
from onefold.spark.verify.verification import Verification
from onefold.store.history import History, StoredEpoch

__all__ = ["behind", "on_record", "report_of"]

_WITHIN_S = 10.0  # store and brokers answer, or are away
_EPOCHS_MAX = 100_000


def report_of(title: str, results: Mapping[str, Verification], store: str, name: str) -> Report:
    """Of these sinks of the pipeline of this name, and of its epochs in this store."""
    invariants: dict[str, dict[str, None]] = {}
    for result in results.values():
        for invariant, texts in result.invariants.items():
            invariants.setdefault(invariant, {}).update(dict.fromkeys(texts))  # what is of the epochs, all sinks say
    epochs, notes = on_record(store, name)
    return Report(
        title=title,
        is_exact=all(result.is_exact for result in results.values()),
        comparisons={sink: result.comparison for sink, result in results.items()},
        invariants={invariant: [*texts] for invariant, texts in invariants.items()},
        epochs=epochs,
        notes=notes,
    )


def on_record(store: str, name: str) -> tuple[list[StoredEpoch], list[str]]:
    """A pipeline's epochs, the oldest first. Where they cannot be read, none, and why."""
    try:
        with closing(History(store, _WITHIN_S)) as history:
            return history.epochs(name, _EPOCHS_MAX)[::-1], []
    except OnefoldError as error:
        return [], [f"the epochs are not known: {error}"]


def behind(pipeline: Pipeline, results: Mapping[str, Verification]) -> dict[str, str]:
    """By sink, what its sources have beyond its ledger's positions; or why nobody knows."""
    found, history = {}, History(pipeline.store_url, _WITHIN_S)
    journal = partial(history.journal, pipeline.name)
    with closing(history), closing(Lags(pipeline, journal, _WITHIN_S)) as lags:
        for sink, result in results.items():
            try:
                units = in_all(lags(result.positions))
                found[sink] = ", ".join(counted(count, unit) for unit, count in units.items())
            except OnefoldError as error:
                found[sink] = f"not known: {error}"
    return found
