"""The status page: static files that ask the API. They hold no data, so they are served without a token."""

from __future__ import annotations

from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

__all__ = ["page_routes"]

_FOLDER = Path(__file__).parent / "page"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Scripts and styles are files of this origin and nothing else; no other page may frame this one.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def page_routes() -> list[Route]:
    """`/`, and the files it consists of under `/static/`. The files are read now: a request touches no file system."""
    files = {
        path.relative_to(_FOLDER).as_posix(): (path.read_bytes(), _TYPES[path.suffix])
        for path in _FOLDER.rglob("*")
        if path.suffix in _TYPES
    }

    async def serve(request: Request) -> Response:
        found = files.get(request.path_params.get("name", "index.html"))
        if found is None:
            raise HTTPException(404)
        content, kind = found
        return Response(content, media_type=kind, headers=_HEADERS)

    return [Route("/", serve), Route("/static/{name:path}", serve)]
