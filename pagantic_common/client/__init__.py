"""The Python client: `Client`, or `AsyncClient` for asyncio programs.

The names below are imported on first use. Importing `pagantic_common.client` is therefore fast, and a program loads
only the parts that it uses.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagantic_common.client.answer_state import AnswerState, CallPart, ClientCall, Delta, DeltaKind, TextPart
    from pagantic_common.client.async_client import AsyncClient
    from pagantic_common.client.hints import Hints, Options
    from pagantic_common.client.notebook.live import watch
    from pagantic_common.client.notebook.timeline import Timeline
    from pagantic_common.client.requests import (
        ask_request,
        assistant_message,
        chat_request,
        choice,
        decide_request,
        plan_request,
        plan_step,
        predicate,
        score,
        structured_request,
        system_message,
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
    "AnswerState",
    "AsyncClient",
    "CallPart",
    "Client",
    "ClientCall",
    "Delta",
    "DeltaKind",
    "FileProgress",
    "Hints",
    "IngestedFiles",
    "Options",
    "StructuredResult",
    "TextPart",
    "Timeline",
    "ask_request",
    "assistant_message",
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
    "system_message",
    "tool_result",
    "user_message",
    "vote_request",
    "watch",
]

_ANSWER_STATE = "pagantic_common.client.answer_state"
_MODULE_OF = {
    "AnswerState": _ANSWER_STATE,
    "AsyncClient": "pagantic_common.client.async_client",
    "CallPart": _ANSWER_STATE,
    "Client": "pagantic_common.client.sync_client",
    "ClientCall": _ANSWER_STATE,
    "Delta": _ANSWER_STATE,
    "DeltaKind": _ANSWER_STATE,
    "FileProgress": "pagantic_common.client.sources.progress",
    "Hints": "pagantic_common.client.hints",
    "IngestedFiles": "pagantic_common.client.sources.upload",
    "Options": "pagantic_common.client.hints",
    "StructuredResult": "pagantic_common.client.typed_output",
    "TextPart": _ANSWER_STATE,
    "Timeline": "pagantic_common.client.notebook.timeline",
    "partial_json": "pagantic_common.domain.text.json_completion",
    "raise_for_error": "pagantic_common.client.responses",
    "watch": "pagantic_common.client.notebook.live",
}
_REQUESTS = "pagantic_common.client.requests"  # the module of every name that is missing from _MODULE_OF

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a name in `__all__` on its first use (PEP 562)."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULE_OF.get(name, _REQUESTS)), name)
        return value

    def __dir__() -> list[str]:
        """Return all names, including those not yet imported."""
        return sorted({*globals(), *__all__})


if "IPython" in sys.modules:
    from pagantic_common.client.notebook.formatters import enable_if_running

    enable_if_running()
