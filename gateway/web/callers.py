"""Finds the API key of a request, and provides the orchestrator client that sends the key."""

from __future__ import annotations

from starlette.requests import Request

from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import PaganticError, Unauthenticated

_SCHEME = "bearer "


def api_key_of(request: Request | None) -> str:
    """Return the API key in `Authorization: Bearer` or else in `x-api-key`.

    Returns an empty string if there is no key or, as over stdio, no request.
    """
    if request is None:
        return ""
    header = request.headers.get("authorization", "")
    if not header.lower().startswith(_SCHEME):
        return request.headers.get("x-api-key", "").strip()
    return header[len(_SCHEME) :].strip()


class Callers:
    """Clients of the orchestrator, with a client for each key, over a shared connection.

    Args:
    client: The client with the server's own key, used for callers without a key.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    def client_for(self, request: Request | None) -> AsyncClient:
        """Return the client of a request's caller. Raises InvalidRequest if the key may not be forwarded."""
        key = api_key_of(request)
        if not key:
            return self._client
        return self._client.for_caller(key)

    async def refuse_unknown(self, request: Request) -> None:
        """Raise Unauthenticated if the orchestrator does not know a request's key."""
        try:
            await self.client_for(request).list_prompt_templates()
        except Unauthenticated:
            raise
        except PaganticError:  # The key is known or cannot be checked now. In that case, each call reports the reason.
            return
