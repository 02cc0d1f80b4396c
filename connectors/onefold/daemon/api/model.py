"""What the API answers: times are ISO 8601 in UTC, names end in their unit, null is what is not known."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field

Offsets = dict[str, int | str]
Name = Annotated[str, Path(description="the pipeline's name")]


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_serialization_defaults_required=True)


class Problem(Model):
    """Why a request was not answered, or not obeyed."""

    code: str = Field(description="docs/errors.md and docs/daemon.md list the codes")
    message: str


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What a route answers with besides."""
    return {status: {"model": Problem} for status in statuses}


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def at(seconds: float | None) -> datetime | None:
    return None if seconds is None else moment(seconds)


def at_ms(ms: int | None) -> datetime | None:
    return None if ms is None else moment(ms / 1000)
