"""What a pipeline's file has: a flow, by its parts or by its name in Python, and its operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from onefold.clients.options import options_model
from onefold.core import ConfigError, OnefoldError, Sink
from onefold.core.values.plain import raised_at
from onefold.flow import Flow
from onefold.pipeline.pipeline import Operation, Pipeline
from onefold.pipeline.references import imported
from onefold.pipeline.runtimes import Engine, Spark
from onefold.pipeline.steps import FileFlow, Reads, Step

__all__ = ["PipelineFile"]


@options_model
@dataclass(frozen=True, kw_only=True, repr=False)  # secrets are in it
class PipelineFile(Operation):
    """What a pipeline's file has: a flow, by its parts or by its name in Python, and its operation."""

    name: str | None = None
    runtime: Literal["engine", "spark"] = "spark"
    flow: str | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    sources: Sequence[Reads] = ()
    steps: Sequence[Step] = ()
    sinks: Sequence[Sink] = ()
    engine: Engine = field(default_factory=Engine)
    spark: Spark = field(default_factory=Spark)

    def pipeline(self, directory: Path, flow: Flow | None = None) -> Pipeline:
        """The pipeline; of this flow, where one is given. Raises ConfigError where its parts do not go together."""
        if flow is None:
            flow = self._of_parts() if self.flow is None else self._named(self.flow, directory)
        made = Pipeline(
            flow,
            runtime=self.engine if self.runtime == "engine" else self.spark,
            directory=str(directory),
            **{each.name: getattr(self, each.name) for each in fields(Operation)},
        )
        if isinstance(flow, FileFlow):
            flow.keep = made.found_first
        if flow.is_settled:
            made.check()  # what is refused is best known now
        return made

    def _of_parts(self) -> Flow:
        for name in ("name", "sources", "sinks"):
            if not getattr(self, name):
                raise ConfigError(
                    "option-missing", f'{name} is missing: or name a flow, as flow = "jobs/orders.py:flow"'
                )
        if self.settings:
            raise ConfigError("options-conflict", "settings are for a flow that is named: leave them out, or give flow")
        return FileFlow(self.name or "", self.sources, self.steps, self.sinks)

    def _named(self, reference: str, directory: Path) -> Flow:
        """The flow of that name; a function is called with the settings."""
        given = [name for name in ("sources", "steps", "sinks") if getattr(self, name)]
        if given:
            raise ConfigError(
                "options-conflict", f"flow names a flow, which has its own {', '.join(given)}: leave out one"
            )
        found = imported(reference, directory)
        if callable(found) and not isinstance(found, Flow):
            found = _called(found, reference, self.settings)
        elif self.settings:
            raise ConfigError("options-conflict", f"{reference} is no function of settings: leave settings out")
        if not isinstance(found, Flow):
            raise ConfigError(
                "option-value", f"{reference} is {type(found).__name__}, and a flow is a Flow (onefold.flow)"
            )
        if self.name not in (None, found.name):
            raise ConfigError(
                "options-conflict",
                f"name is {self.name!r}, and the flow is {found.name!r}: leave name out, which is the flow's",
            )
        return found


def _called(function: Callable[..., object], reference: str, settings: Mapping[str, object]) -> object:
    try:
        return function(settings)
    except OnefoldError:
        raise
    except Exception as error:
        tells = any(text in str(error) for text in _texts(settings))  # which may be a secret
        told = "its message has a setting in it, and is not shown" if tells else str(error)
        raise ConfigError(
            "reference-broken",
            f"{reference}, called with the settings, failed{raised_at(error)}: {type(error).__name__}: {told}",
        ) from (None if tells else error)


def _texts(value: object) -> Iterator[str]:
    """All that are in the settings, but for empty ones."""
    match value:
        case str():
            yield from filter(None, (value,))
        case dict():
            yield from _texts([*value.values()])
        case list():
            for one in value:
                yield from _texts(one)
