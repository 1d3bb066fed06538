"""The Python client: `Client`, or `AsyncClient` in asyncio programs."""

from __future__ import annotations

from pagantic_common.client.async_client import AsyncClient
from pagantic_common.client.hints import Hints, Options
from pagantic_common.client.notebook.formatters import enable_if_running
from pagantic_common.client.notebook.live import watch
from pagantic_common.client.notebook.timeline import Timeline
from pagantic_common.client.requests import (
    ask_request,
    chat_request,
    choice,
    decide_request,
    plan_request,
    plan_step,
    predicate,
    score,
    structured_request,
    tool_result,
    user_message,
    vote_request,
)
from pagantic_common.client.responses import raise_for_error
from pagantic_common.client.sources.progress import FileProgress
from pagantic_common.client.sources.upload import IngestedFiles
from pagantic_common.client.sync_client import Client
from pagantic_common.client.typed_output import StructuredResult
from pagantic_common.domain.text.json_completion import partial_json

__all__ = [
    "AsyncClient",
    "Client",
    "FileProgress",
    "Hints",
    "IngestedFiles",
    "Options",
    "StructuredResult",
    "Timeline",
    "ask_request",
    "chat_request",
    "choice",
    "decide_request",
    "partial_json",
    "plan_request",
    "plan_step",
    "predicate",
    "raise_for_error",
    "score",
    "structured_request",
    "tool_result",
    "user_message",
    "vote_request",
    "watch",
]

enable_if_running()
