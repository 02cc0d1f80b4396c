"""All that was found of a pipeline, and what it means for the guarantee of each sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from onefold.clients.exposure import of_url
from onefold.core import Guarantee, Sink
from onefold.core.contract import SinkKind
from onefold.core.findings import Finding, Level, Making, not_promised, tried
from onefold.core.invariants import INVARIANTS, NoDuplicate
from onefold.core.protocol.committer_kinds import sole_last_resource
from onefold.core.source import Source
from onefold.core.values.names import check_pipeline_name
from onefold.flow.planning import check_replayable
from onefold.flow.processing.mechanisms import Mechanism, check_sinks_shown_early
from onefold.operate.doctor.examination import SinkLook, StoreLook, asked, examined, exposed


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
    runtime: tuple[Finding, ...]
    sinks: tuple[SinkDiagnosis, ...]
    knows_rows: bool = True  # whether the rows' schema was given
    mechanism: Mechanism = "barriers"

    @property
    def holds(self) -> bool:
        """Whether nothing was found that breaks the guarantee, or keeps the pipeline from starting."""
        return all(finding.level is not Level.PROBLEM for finding in self.findings)

    @property
    def is_whole(self) -> bool:
        """Whether all that a start checks could be checked."""
        return all(finding.level is not Level.UNCHECKED for finding in self.findings)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All of them: of what it runs on, the store, the source, and each sink."""
        return (
            *self.runtime,
            *self.store,
            *self.source,
            *(finding for sink in self.sinks for finding in sink.findings),
        )

    def invariants(self, sink: SinkDiagnosis) -> dict[str, str]:
        """For each invariant why it does not hold; an empty text where it holds under the sink's conditions."""
        if sink.guarantee is None:
            return {}
        found = (*sink.findings, *self.store, *self.source, *self.runtime)
        broken = {name: finding.says for finding in found for name in finding.breaks}
        missing = not_promised(sink.guarantee)
        if self.mechanism == "ack":
            missing[NoDuplicate.name] = f"with mechanism {self.mechanism} records come again after a crash"
        return {i.name: missing.get(i.name) or broken.get(i.name, "") for i in INVARIANTS}

    @property
    def makes(self) -> tuple[Making, ...]:
        """What the first start makes or alters, each thing once, in its order."""
        found = (*self.store, *(each for sink in self.sinks for each in sink.findings), *self.runtime)
        return tuple(dict.fromkeys(making for finding in found for making in finding.makes))

    def as_dict(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "holds": self.holds,
            "whole": self.is_whole,
            "runtime": _as_dicts(self.runtime),
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
    sources: Sequence[Source] = (),
    schemas: Mapping[str, pa.Schema] | None = None,
    require_tls: bool = False,
    runtime: Sequence[Finding] = (),
    mechanism: Mechanism = "barriers",
) -> Diagnosis:
    """Examine these sinks as the pipeline has them; `store` and `require_tls` as `Pipeline` takes them, the
    store by default the first sink's own. `schemas` are those of each sink's rows, by its name; without them, whether
    they fit into the sinks is not checked. `runtime` are findings on what it runs on, where
    `mechanism` protects it.

    A server that does not answer is a finding like any other: whatever else can be looked at is.
    """
    everyone = [(sink, None if schemas is None else schemas[sink.name]) for sink in sinks]
    url = store or next((url for sink, _ in everyone if (url := sink.store_url())), None)
    look = StoreLook(pipeline, url)
    refused = Level.PROBLEM if require_tls else Level.CAUTION
    about_store = (*exposed(of_url(url, "the checkpoint store's") if url else "", refused), *asked(look.at))
    about_source = tuple(
        finding
        for source in sources
        for finding in (*exposed(source, refused), *asked(partial(examined, source, look.position)))
    )
    about_source += tuple(tried(lambda: check_replayable(pipeline, sources, sinks)))
    looks = [SinkLook(sink, look, rows) for sink, rows in everyone]
    about_sinks = [each.findings(refused) for each in looks]
    promises = {each.name: each.promise for each in looks if each.promise is not None}
    early = [name for name, promise in promises.items() if promise.kind is SinkKind.WRITE_THROUGH]
    about_store = (
        *about_store,
        *tried(lambda: check_pipeline_name(pipeline)),
        *tried(lambda: check_sinks_shown_early(pipeline, mechanism, early)),
        *tried(lambda: sole_last_resource(promises)),
    )
    if all(each.is_read for each in looks):
        about_store = (*about_store, *asked(lambda: look.against({each.name: each.ledger for each in looks})))
    found = (SinkDiagnosis(at.name, at.promise, told) for at, told in zip(looks, about_sinks, strict=True))
    return Diagnosis(pipeline, about_store, about_source, tuple(runtime), tuple(found), schemas is not None, mechanism)


def _as_dicts(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    return [
        {
            "level": f.level.value,
            "says": f.says,
            "breaks": list(f.breaks),
            "code": f.error.code if f.error is not None else None,
        }
        for f in findings
    ]
