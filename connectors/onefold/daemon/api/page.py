"""The status page: static files, which ask the API. `Guard` sends them with a policy that runs nothing else."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

__all__ = ["FOLDER", "page_routes"]

FOLDER = Path(__file__).parents[1] / "page"


def page_routes() -> list[BaseRoute]:
    """`/`, and what it consists of under `/static/`."""

    async def page(_request: Request) -> FileResponse:
        return FileResponse(FOLDER / "index.html")

    return [Route("/", page), Mount("/static", StaticFiles(directory=FOLDER))]
