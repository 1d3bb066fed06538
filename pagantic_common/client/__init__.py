"""The Python client: `Client`, or `AsyncClient` in asyncio programs."""

from __future__ import annotations

from pagantic_common.client.async_client import AsyncClient, raise_for_error
from pagantic_common.client.requests import Hints, chat_request, structured_request
from pagantic_common.client.sync_client import Client

__all__ = ["AsyncClient", "Client", "Hints", "chat_request", "raise_for_error", "structured_request"]
