"""Diagnoses a pipeline: what its settings guarantee, and whether its servers fit them. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from onefold.cli.doctor.store_examination import StoreLook
from onefold.clients.exposure import Reaching, of_url
from onefold.core import Guarantee, OnefoldError, Sink, SinkKind
from onefold.core.findings import Examined, Finding, Holding, Level, not_promised
from onefold.core.invariants import INVARIANTS
from onefold.core.protocol.in_doubt import Fate, fates
from onefold.core.store.checkpoint_store import CheckpointStore
from onefold.sources import KafkaSource
from onefold.sources.kafka import doctor as kafka

__all__ = ["Diagnosis", "SinkDiagnosis", "diagnose"]


@dataclass(frozen=True, slots=True)
class SinkDiagnosis:
    """`guarantee` is None where the sink could not say what it gives; a finding says why."""

    name: str
    guarantee: Guarantee | None
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    pipeline: str
    store: tuple[Finding, ...]
    source: tuple[Finding, ...]
    sinks: tuple[SinkDiagnosis, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing was found that breaks the guarantee, or keeps the pipeline from starting."""
        found = (*self.store, *self.source, *(f for sink in self.sinks for f in sink.findings))
        return all(finding.level is not Level.PROBLEM for finding in found)

    def invariants(self, sink: SinkDiagnosis) -> dict[str, str]:
        """For each invariant why it does not hold; an empty text where it holds under the sink's conditions."""
        if sink.guarantee is None:
            return {}
        found = (*sink.findings, *self.store, *self.source)
        broken = {name: finding.says for finding in found for name in finding.breaks}
        missing = not_promised(sink.guarantee)
        return {i.name: missing.get(i.name) or broken.get(i.name, "") for i in INVARIANTS}

    def as_dict(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "holds": self.holds,
            "store": _as_dicts(self.store),
            "source": _as_dicts(self.source),
            "sinks": [self._sink_as_dict(sink) for sink in self.sinks],
        }

    def _sink_as_dict(self, sink: SinkDiagnosis) -> dict[str, Any]:
        promise = sink.guarantee
        return {
            "name": sink.name,
            "mode": None if promise is None else promise.mode,
            "kind": None if promise is None else promise.kind.value,
            "invariants": {name: why or "holds" for name, why in self.invariants(sink).items()},
            "conditions": [] if promise is None else list(promise.conditions),
            "findings": _as_dicts(sink.findings),
        }


def diagnose(
    pipeline: str,
    sinks: Sequence[Sink],
    *,
    store: str | None = None,
    source: KafkaSource | None = None,
    require_tls: bool = False,
) -> Diagnosis:
    """Examine these sinks as the pipeline has them; `store` and `require_tls` as `Pipeline` takes them, the store by
    default the first sink's own.

    A server that does not answer is a finding like any other: whatever else can be looked at is.
    """
    url = store or next((url for sink in sinks if (url := sink.store_url())), None)
    look = StoreLook(pipeline)
    refused = Level.PROBLEM if require_tls else Level.CAUTION
    exposed = of_url(url, "the checkpoint store's") if url else ""
    about_store = (*_exposed(exposed, refused), *_asked(lambda: look.at(url)))
    about_source: tuple[Finding, ...] = ()
    if source is not None:
        about_source = (*_exposed(source, refused), *_asked(lambda: kafka.examine(source, look.position)))
    return Diagnosis(pipeline, about_store, about_source, tuple(_examined(sink, look, refused) for sink in sinks))


def _exposed(part: object, level: Level) -> tuple[Finding, ...]:
    """What is wrong with the connections to its servers, or the given text."""
    says = part if isinstance(part, str) else part.exposure() if isinstance(part, Reaching) else ""
    return (Finding(level, says),) if says else ()


def _examined(sink: Sink, look: StoreLook, exposed: Level) -> SinkDiagnosis:
    try:
        promise = sink.guarantee()
    except OnefoldError as error:
        return SinkDiagnosis(sink.name, None, (Finding(Level.PROBLEM, str(error)),))

    def findings() -> Iterator[Finding]:
        yield from _exposed(sink, exposed)
        if promise.kind is SinkKind.LAST_RESOURCE and look.store_id is not None:
            yield _same_store(sink, look.store_id)
        if isinstance(sink, Examined):
            yield from sink.examine(look.pipeline, look.deciding_s)
        if isinstance(sink, Holding):
            yield from _left_over(sink, look)

    return SinkDiagnosis(sink.name, promise, _asked(findings))


def _left_over(sink: Holding, look: StoreLook) -> Iterator[Finding]:
    """Findings on prepared work that no epoch decides: a late task has prepared it."""
    listed = {held.committable: held for held in sink.held(look.pipeline)}  # before the store is read, as for a sweep
    facts = look.facts() if listed else None
    if facts is None:
        return
    for committable, fate in fates(facts, listed).items():
        held = listed[committable]
        if fate is Fate.ROLL_BACK:
            yield Finding(
                Level.CAUTION,
                f"{committable.handle} was prepared {held.age_s:.0f} s ago by a task that came late: epoch"
                f" {committable.epoch} of generation {committable.generation} is over, and nobody will commit it."
                f" {held.costs}",
            )


def _same_store(sink: Sink, store_id: str) -> Finding:
    """A last-resource sink joins the decision's own transaction, so the store has to be in its database."""
    url = sink.store_url()
    assert url is not None, sink
    with closing(CheckpointStore(url, lock_timeout_s=10)) as own:
        if own.look() == store_id:
            return Finding(Level.FINE, "the checkpoint store is in the sink's own database")
    return Finding(
        Level.PROBLEM,
        f"sink {sink.name!r} is staged, and the checkpoint store {store_id} is not in its database: the decision and "
        "the rows could not be one transaction. Leave out store=, or name that database",
    )


def _asked(ask: Callable[[], Iterable[Finding]]) -> tuple[Finding, ...]:
    """All findings up to a server's refusal or silence, and that as the last one."""
    found: list[Finding] = []
    try:
        found.extend(ask())
    except OnefoldError as error:
        found.append(Finding(Level.PROBLEM, str(error)))
    return tuple(found)


def _as_dicts(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    return [{"level": f.level.value, "says": f.says, "breaks": list(f.breaks)} for f in findings]
