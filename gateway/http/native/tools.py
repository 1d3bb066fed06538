"""The tools of the deployment over HTTP."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway.http.native.executions import plain
from gateway.http.streams.running import Answer
from pagantic_common.client import AsyncClient


def tool_routes() -> list[Route]:
    """Return the path of tools."""
    return [Route("/v1/tools", _list, methods=["GET"])]


async def _list(client: AsyncClient, _request: Request, _body: bytes) -> Answer:
    return JSONResponse({"tools": [plain(one) for one in await client.list_tools()]})
