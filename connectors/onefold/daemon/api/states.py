"""The routes of the state of a pipeline's operators, which their workers are asked for."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Collection
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import FastAPI, Path, Query
from pydantic import Field

from onefold.core import ConfigError
from onefold.daemon.api.blocking_calls import BlockingCalls
from onefold.daemon.api.model import Model, Name, problems
from onefold.daemon.watch.watch import Watch
from onefold.pipeline import Engine

if TYPE_CHECKING:
    from onefold.engine.asking.reader import StateReader

_KEYS_MAX = 100
_BYTES_MAX = 64 << 10  # of an answer
_A_SECOND_MAX = 50  # questions
_STATUS = {"state-answer-large": 413, "state-too-often": 429}
_STATUS |= dict.fromkeys(("state-not-queryable", "state-on-spark", "state-unknown"), 404)
_WAIT_S = 3.0  # for workers that start
_CALLS_MAX = 2


class StateRefused(ConfigError):
    """What was asked is no question, or too much."""

    @property
    def status(self) -> int:
        return _STATUS.get(self.code, 422)


class AskedModel(Model):
    """An operator with queryable=True."""

    uid: str
    key: list[str] = Field(description="the columns of its key, each with its type")
    states: list[str]


class AnswerModel(Model):
    """What is kept of one key."""

    rows: list[dict[str, Any]] = Field(description="the key's columns and the state's; none where it has nothing")
    epoch: int = Field(
        description="the complete epoch of which they are; of the view live the last one in it as a whole"
    )
    timestamp_ms: int = Field(description="the epoch's time, since 1970; 0 where it is not known")
    watermark: datetime | None
    view: Literal["committed", "live"]


def add_states(app: FastAPI, named: Callable[[str], Watch], names: Collection[str]) -> None:
    """The routes, for these pipelines. `named` raises where it does not know one."""
    calls = {name: BlockingCalls(f"the workers of pipeline {name!r}", _CALLS_MAX) for name in names}
    wrong = problems(404, 413, 422, 429, 503)
    asked_s: deque[float] = deque(maxlen=_A_SECOND_MAX)

    def reader(name: str) -> StateReader:
        from onefold.engine.asking.reader import StateReader  # with operators, which a daemon else does without

        return StateReader(named(name).control.pipeline, wait_s=_WAIT_S)

    def admit() -> None:
        now_s = time.monotonic()
        if len(asked_s) == _A_SECOND_MAX and now_s - asked_s[0] < 1.0:
            raise StateRefused("state-too-often", f"at most {_A_SECOND_MAX} questions a second: ask again later")
        asked_s.append(now_s)

    @app.get("/pipelines/{name}/state", tags=["state"], responses=wrong)
    async def states(name: Name) -> list[AskedModel]:
        """The operators that can be asked while the pipeline runs; none where it does not."""
        if not isinstance(named(name).control.pipeline.runtime, Engine):
            return []
        found = await calls[name].ask(lambda: _refusing(lambda: reader(name).operators()))
        return [AskedModel(uid=uid, key=of.columns, states=[*of.states]) for uid, of in found.items()]

    @app.get("/pipelines/{name}/state/{uid}/{state}", tags=["state"], responses=wrong)
    async def state(
        name: Name,
        uid: Annotated[str, Path(description="the operator's")],
        state: Annotated[str, Path(description="aggregates, reduced, windows, or a name of a processor's state")],
        key: Annotated[
            list[str],
            Query(max_length=_KEYS_MAX, description='a JSON list of the key\'s values, as ["a17"]; again for more'),
        ],
        view: Literal["committed", "live"] = "committed",
    ) -> list[AnswerModel]:
        """What is kept of each key: as the last complete epoch left it, or live, with what may be taken back."""
        named(name)
        admit()
        keys = [*map(_key, key)]
        found = await calls[name].ask(
            lambda: _refusing(lambda: reader(name).get_many(uid, keys, state=state, view=view))
        )
        answers = [each.plain() for each in found]
        if len(json.dumps(answers)) > _BYTES_MAX:
            raise StateRefused("state-answer-large", f"the answer has over {_BYTES_MAX:,} bytes: ask for fewer keys")
        return [AnswerModel(**each) for each in answers]


def _key(text: str) -> list[Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise StateRefused("state-key", f'{text!r:.200} is no key: give a JSON list of its values, as ["a17"]')
    return found


def _refusing(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except ConfigError as error:
        raise error.retyped(StateRefused) from None
