"""The Python client: `Client`, or `AsyncClient` in asyncio programs."""

from __future__ import annotations

from pagantic_common.client.async_client import AsyncClient, raise_for_error
from pagantic_common.client.requests import Hints, chat_request, structured_request, vote_request
from pagantic_common.client.sync_client import Client
from pagantic_common.domain.json_completion import partial_json

__all__ = [
    "AsyncClient",
    "Client",
    "Hints",
    "chat_request",
    "partial_json",
    "raise_for_error",
    "structured_request",
    "vote_request",
]
