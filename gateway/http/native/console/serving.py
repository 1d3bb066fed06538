"""Serves the console's page and files to any request that names this host; the paths that they call need a key."""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.http.native.console.files import ServedFile, served_files
from gateway.http.settings import HttpSettings
from gateway.http.streams.running import Answer
from pagantic_common.client import AsyncClient


def console_routes(settings: HttpSettings) -> list[Route]:
    """Return the paths of the console; empty if the settings turn it off."""
    if not settings.console:
        return []
    folder = files("gateway.http.native.console") / "static"
    found = {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()}
    return [_route(path, file) for path, file in served_files(found).items()]


def _route(path: str, file: ServedFile) -> Route:
    async def show(_client: AsyncClient, request: Request, _body: bytes) -> Answer:
        if file.is_known(request.headers.get("if-none-match", "")):
            return Response(status_code=304, headers=file.headers)
        return Response(file.body, headers=file.headers)

    return Route(path, show, methods=["GET"])
