"""Serves the console's page and its files to anybody whose request names this host; what they call asks for a key."""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.http.console.files import ServedFile, served_files
from gateway.http.document.operations import Access, DescribedRoute, Operation, Tag
from gateway.http.settings import HttpSettings
from gateway.http.streams.running import Answer
from pagantic_common.client import AsyncClient

# The document of the API does not have these paths: they are for browsers.
_OPERATION = Operation(Tag.DOCUMENT, "getConsole", "A file of the console.", text_type="text/html", access=Access.OPEN)


def console_routes(settings: HttpSettings) -> list[DescribedRoute]:
    """Return the paths of the console; none where the settings turn it off."""
    if not settings.console:
        return []
    folder = files("gateway.http.console") / "static"
    found = {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()}
    return [_route(path, file) for path, file in served_files(found).items()]


def _route(path: str, file: ServedFile) -> DescribedRoute:
    async def show(_client: AsyncClient, request: Request, _body: bytes) -> Answer:
        if file.is_known(request.headers.get("if-none-match", "")):
            return Response(status_code=304, headers=file.headers)
        return Response(file.body, headers=file.headers)

    return DescribedRoute(Route(path, show, methods=["GET"]), "GET", _OPERATION)
