"""The API's routes, described by OpenAPI, and those of the status page: static files, which ask the API. `Guard` sends
them with a policy that runs nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from importlib.metadata import version
from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.security import HTTPBearer
from prometheus_client import CollectorRegistry, generate_latest
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from onefold.core import ConfigError, OnefoldError
from onefold.daemon.api.blocking_calls import BlockingCalls
from onefold.daemon.api.epochs import EpochDetail, EpochModel, EpochPage
from onefold.daemon.api.graphs import GraphModel
from onefold.daemon.api.letters import add_letters
from onefold.daemon.api.model import Name, Problem, problems
from onefold.daemon.api.pipelines import DefinitionModel, Health, LagHistory, LogModel, PipelineModel, ReadyModel
from onefold.daemon.api.states import StateRefused, add_states
from onefold.daemon.control import Action, NotNow
from onefold.daemon.watch.watch import Watch
from onefold.operate.letters.letter import NotSendable

PAGE = FilePath(__file__).parents[1] / "page"

_CALLS_MAX = 2  # to one store at once: each has a connection of its own
_BIGGEST = 2**63 - 1
_METRICS = "text/plain; version=0.0.4; charset=utf-8"

Number = Annotated[int, Path(ge=1, le=_BIGGEST, description="the epoch's number")]


class NotThere(ConfigError):
    """There is no such pipeline, or no such epoch."""


def make_app(watches: Collection[Watch], registry: CollectorRegistry) -> FastAPI:
    """The ASGI application, for a `Guard` to stand before."""
    by_name = {watch.control.name: watch for watch in watches}
    app = FastAPI(
        title="onefold",
        version=version("onefold"),
        description="The pipelines of one `onefold run`: their state, their epochs, and what an operator may do.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(HTTPBearer(auto_error=False, description="the daemon's token"))],
        responses={401: {"model": Problem}},
    )
    _add_errors(app)
    _add_health(app, by_name, registry)
    _add_pipelines(app, by_name)
    app.router.routes.extend(page_routes())
    return app


def _add_health(app: FastAPI, by_name: Mapping[str, Watch], registry: CollectorRegistry) -> None:
    @app.get("/health", tags=["health"])
    async def health() -> Health:
        """Whether the process answers."""
        return Health()

    @app.get("/ready", tags=["health"], responses={503: {"model": ReadyModel, "description": "one of them does not"}})
    async def ready(response: Response) -> ReadyModel:
        """Whether every pipeline runs, is paused or has finished, and waits for no server."""
        states = {name: watch.control.state for name, watch in by_name.items()}
        found = all(watch.is_ready for watch in by_name.values())
        response.status_code = 200 if found else 503
        return ReadyModel(is_ready=found, pipelines={name: state.value for name, state in states.items()})

    @app.get(
        "/metrics",
        tags=["health"],
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    def metrics() -> Response:
        """Metrics in Prometheus's text format."""
        return Response(generate_latest(registry), headers={"content-type": _METRICS})


def _add_pipelines(app: FastAPI, by_name: Mapping[str, Watch]) -> None:
    named_wrong, of_store = problems(404, 422), problems(404, 422, 503)
    calls = {name: BlockingCalls("the checkpoint store", _CALLS_MAX) for name in by_name}

    def named(name: str) -> Watch:
        if (found := by_name.get(name)) is None:
            raise NotThere(
                "pipeline-unknown", f"this daemon runs no pipeline {name!r}; it runs {', '.join(sorted(by_name))}"
            )
        return found

    @app.get("/pipelines", tags=["pipelines"])
    async def pipelines() -> list[PipelineModel]:
        """All pipelines of this process."""
        return [PipelineModel.of(watch) for watch in by_name.values()]

    @app.get("/pipelines/{name}", tags=["pipelines"], responses=named_wrong)
    async def pipeline(name: Name) -> PipelineModel:
        """One pipeline. What comes from servers was asked at most some seconds ago."""
        return PipelineModel.of(named(name))

    @app.get("/pipelines/{name}/graph", tags=["pipelines"], responses=named_wrong)
    async def graph(name: Name) -> GraphModel:
        """Its graph as a picture, with what flows in it now."""
        return GraphModel.of(named(name).control.run.hosted.traffic)

    @app.get("/pipelines/{name}/lags", tags=["pipelines"], responses=named_wrong)
    async def lags(name: Name) -> LagHistory:
        """How far the pipeline was behind, in the last hour of this daemon."""
        return LagHistory.of(named(name))

    @app.get("/pipelines/{name}/log", tags=["pipelines"], responses=named_wrong)
    async def log(name: Name) -> LogModel:
        """What was logged of it last, by the daemon and by the process that runs it."""
        return LogModel.of(named(name))

    @app.get("/pipelines/{name}/definition", tags=["pipelines"], responses=named_wrong)
    async def definition(name: Name) -> DefinitionModel:
        """What its file says, with secrets hidden."""
        return DefinitionModel(lines=list(named(name).definition))

    @app.get("/pipelines/{name}/epochs", tags=["epochs"], responses=of_store)
    async def epochs(
        name: Name,
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
        before: Annotated[int | None, Query(ge=1, le=_BIGGEST, description="only lower numbers than this")] = None,
    ) -> EpochPage:
        """The newest epochs, as the checkpoint store has them now."""
        watch = named(name)
        found = await calls[name].ask(lambda: watch.history.epochs(name, limit, before))
        return EpochPage(epochs=[EpochModel.of(one, watch.control.run.hosted.epochs) for one in found])

    @app.get("/pipelines/{name}/epochs/{epoch}", tags=["epochs"], responses=of_store)
    async def epoch(name: Name, epoch: Number) -> EpochDetail:
        """One epoch with its manifest."""
        watch = named(name)
        found = await calls[name].ask(lambda: watch.history.epoch(name, epoch))
        if found is None:
            raise NotThere(
                "epoch-unknown", f"the checkpoint store of pipeline {name!r} has no epoch {epoch}, or no longer has it"
            )
        return EpochDetail.of(found, watch.control.run.hosted.epochs)

    add_letters(app, named, by_name)
    add_states(app, named, by_name)

    def add_action(action: Action, says: str) -> None:
        @app.post(
            f"/pipelines/{{name}}/{action.value}",
            tags=["control"],
            status_code=202,
            name=action.value,
            description=says,
            responses={**named_wrong, 409: {"model": Problem, "description": "its state does not allow it"}},
        )
        async def act(name: Name) -> PipelineModel:
            watch = named(name)
            watch.control.act(action)
            return PipelineModel.of(watch)

    add_action(Action.PAUSE, "Begin no further epoch. The one that runs is finished.")
    add_action(Action.RESUME, "Begin epochs again.")
    add_action(Action.STOP, "End it with its epoch complete. The process stays, so that it can be started again.")
    add_action(Action.RESTART, "End it with its epoch complete, if it runs, and start it again.")


def _add_errors(app: FastAPI) -> None:
    def add(kind: type[Exception], answer: Callable[[Any], JSONResponse]) -> None:
        async def handle(_request: Request, error: Exception) -> Response:
            return answer(error)

        handler: Callable[[Request, Exception], Awaitable[Response]] = handle
        app.add_exception_handler(kind, handler)

    add(NotThere, lambda error: _problem(404, error.code, error.message))
    add(NotNow, lambda error: _problem(409, error.code, error.message))
    add(StateRefused, lambda error: _problem(error.status, error.code, error.message))
    add(NotSendable, lambda error: _problem(409, error.code, error.message))
    add(OnefoldError, lambda error: _problem(503, error.code, error.message))  # the store's
    add(HTTPException, lambda error: _problem(error.status_code, *_HTTP.get(error.status_code, ("", error.detail))))
    add(RequestValidationError, lambda error: _problem(422, "request-invalid", _wrong(error)))
    add(Exception, lambda _: _problem(500, "unexpected-error", "a defect of onefold: its traceback is in the log"))


_HTTP = {
    400: ("body-unreadable", "the request's body is not JSON in UTF-8"),
    404: ("path-unknown", "there is nothing at this path: see /openapi.json"),
    405: ("method-not-allowed", "this path takes no such method: see /openapi.json"),
    413: ("body-too-large", "a request's body has at most 65,536 bytes"),
}


def _wrong(error: RequestValidationError) -> str:
    found = error.errors()[0]
    return f"{'.'.join(map(str, found['loc']))}: {found['msg']}"


def _problem(status: int, code: str, message: str) -> JSONResponse:
    return JSONResponse(Problem(code=code or "request-refused", message=message).model_dump(), status)


def page_routes() -> list[BaseRoute]:
    """`/`, and what it consists of under `/static/`."""

    async def page(_request: Request) -> FileResponse:
        return FileResponse(PAGE / "index.html")

    return [Route("/", page), Mount("/static", StaticFiles(directory=PAGE))]
