"""Sends a response as server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any

from gateway.http.failures import error_of
from gateway.http.openai.responses.stream import ResponseEvents
from gateway.http.running import QUIET, QUIET_S, merge_events
from pagantic.orchestrator.v1 import event_pb2
from pagantic_common.domain.errors import PaganticError


async def send_response(
    incoming: AsyncGenerator[event_pb2.ExecutionEvent, None], events: ResponseEvents, request_id: str
) -> AsyncGenerator[str, None]:
    """Yield server-sent events; an error after the first one is an event, too. Raises an error before it."""
    has_begun = False
    try:
        async with aclosing(merge_events([incoming], QUIET_S)) as merged:
            async for one in merged:
                if not has_begun:
                    has_begun = True
                    yield _encoded(events.first())
                yield QUIET if one is None else _encoded(events.of(one[1]))
    except PaganticError as error:
        if not has_begun:
            raise
        yield _encoded(events.error(error_of(error, request_id)))


def _encoded(events: Iterable[dict[str, Any]]) -> str:
    return "".join(
        f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n"
        for event in events
    )
