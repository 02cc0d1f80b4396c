"""The routes of dead letters."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict
from datetime import datetime
from importlib import import_module
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query
from pydantic import Field

from onefold.core.extras import naming_extras
from onefold.daemon.api.blocking_calls import BlockingCalls
from onefold.daemon.api.model import Model, Name, Problem, problems
from onefold.daemon.watch.watch import Watch
from onefold.operate.letters.letter import FoundLetters, Letter, Mark, RecordPlace, takes_letters


class _Letters(BlockingCalls):
    WITHIN_S = 65.0  # to settle what an earlier attempt left, to look for it, to send


class PlaceModel(Model):
    """Where a record is in the source."""

    topic: str = Field(min_length=1, max_length=249, pattern=r"^[a-zA-Z0-9._-]+$")
    partition: int = Field(ge=0, le=2**31 - 1)
    offset: int = Field(ge=0, le=2**63 - 1)


class SentModel(Model):
    """sending: whether it was sent is not known yet; to send it again finds out."""

    state: Literal["sending", "sent"]
    at: datetime
    offset: int | None


class LetterHeader(Model):
    key: str
    value: str | None


class LetterModel(Model):
    """A record that could not be read (it has a place), or a row that a sink refused. Bytes are shown as UTF-8."""

    sink: str
    epoch: int
    at: datetime | None
    reason: str
    place: PlaceModel | None
    position: dict[str, Any] | None = Field(description="a row's columns that source_position names")
    key: str | None
    value: str | None = Field(description="its first 4,096 bytes")
    value_bytes: int | None
    headers: list[LetterHeader]
    sent: SentModel | None
    can_send: bool


class LettersModel(Model):
    letters: list[LetterModel] = Field(description="the newest first")
    elsewhere: list[str] = Field(description="sinks of dead letters that are no Postgres tables: read them there")


class ReasonModel(Model):
    sink: str
    reason: str = Field(description="its first 200 characters, by which letters are counted")
    letters: int
    first_epoch: int
    last_epoch: int


def add_letters(app: FastAPI, named: Callable[[str], Watch], names: Collection[str]) -> None:
    """The routes, for these pipelines. `named` raises where it does not know one."""
    calls = {name: _Letters("what has the dead letters", 1) for name in names}

    @app.get("/pipelines/{name}/dead-letters", tags=["dead letters"], responses=problems(404, 422, 503))
    async def letters(
        name: Name,
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
        reason: Annotated[str, Query(max_length=1000, description="only those that have it in their reason")] = "",
    ) -> LettersModel:
        """The newest dead letters of each of its sinks that puts them into a Postgres table."""
        pipeline = named(name).control.pipeline
        if not takes_letters(pipeline):
            return LettersModel(letters=[], elsewhere=[])
        found: FoundLetters = await calls[name].ask(lambda: _driven("browse").newest(pipeline, limit, reason))
        return LettersModel(letters=[*map(_letter, found.letters)], elsewhere=list(found.elsewhere))

    @app.get("/pipelines/{name}/dead-letters/reasons", tags=["dead letters"], responses=problems(404, 422, 503))
    async def counted(name: Name) -> list[ReasonModel]:
        """How many dead letters have which reason, the most first."""
        pipeline = named(name).control.pipeline
        if not takes_letters(pipeline):
            return []
        return [
            ReasonModel(**asdict(each)) for each in await calls[name].ask(lambda: _driven("browse").reasons(pipeline))
        ]

    @app.post(
        "/pipelines/{name}/dead-letters/send",
        tags=["dead letters"],
        responses={
            **problems(404, 422, 503),
            400: {"model": Problem, "description": "the body is not JSON"},
            409: {"model": Problem, "description": "it can't be sent, or was sent already"},
            413: {"model": Problem, "description": "the body is too large"},
        },
    )
    async def send(name: Name, place: PlaceModel) -> SentModel:
        """Send the record of a dead letter to its own topic again, once."""
        pipeline, at = named(name).control.pipeline, RecordPlace(place.topic, place.partition, place.offset)
        return _sent(await calls[name].ask(lambda: _driven("resend").send_again(pipeline, at)))


def _driven(module: str) -> Any:
    """What imports the driver of Postgres or Kafka, which a daemon without such sinks does without."""
    with naming_extras():
        return import_module(f"onefold.operate.letters.{module}")


def _letter(letter: Letter) -> LetterModel:
    place = letter.place
    return LetterModel(
        sink=letter.sink,
        epoch=letter.epoch,
        at=letter.at,
        reason=letter.reason,
        place=None if place is None else PlaceModel(topic=place.topic, partition=place.partition, offset=place.offset),
        position=None if letter.position is None else dict(letter.position),
        key=_text(letter.key),
        value=_text(letter.value),
        value_bytes=letter.value_bytes,
        headers=[LetterHeader(key=_whole(key), value=_text(value)) for key, value in letter.headers],
        sent=None if letter.mark is None else _sent(letter.mark),
        can_send=letter.is_sendable,
    )


def _sent(mark: Mark) -> SentModel:
    return SentModel(state=mark.state.value, at=mark.at, offset=mark.sent_offset)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")


def _whole(text: str) -> str:
    """Half a character (a lone surrogate), which JSON may escape and UTF-8 has not, becomes its escape."""
    return text.encode(errors="backslashreplace").decode()
