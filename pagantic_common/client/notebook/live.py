"""Notebook outputs that are redrawn while work is in progress. Outside a notebook, nothing is shown."""

from __future__ import annotations

import importlib
import time
from collections.abc import Generator, Iterable
from typing import Any, Final

from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.client.answer_state import AnswerState, is_streamed
from pagantic_common.client.descriptions import count_of
from pagantic_common.client.notebook.formatters import running_shell
from pagantic_common.client.notebook.markup import block, page, plain
from pagantic_common.client.notebook.timeline import Timeline, latest_html, timeline_html
from pagantic_common.client.responses import raise_for_error
from pagantic_common.domain.errors import Internal

REDRAW_S: Final = 0.2
_TAIL_CHARS: Final = 2_000


class LiveOutput:
    """A notebook output that is redrawn in place, at most five times a second."""

    def __init__(self) -> None:
        self._display: Any = None
        self._handle: Any = None
        self._drawn_s = 0.0
        # IPython on a terminal also has a shell, but no kernel: it would print each drawing below the previous drawing.
        if getattr(running_shell(), "kernel", None) is not None:
            self._display = importlib.import_module("IPython.display").display

    def is_due(self) -> bool:
        """Return whether the output is due to be redrawn."""
        return self._display is not None and time.monotonic() - self._drawn_s >= REDRAW_S

    def draw(self, text: str, html: str) -> None:
        """Draw or redraw the output."""
        if self._display is None:
            return
        self._drawn_s = time.monotonic()
        bundle = {"text/plain": text, "text/html": html}
        if self._handle is None:
            self._handle = self._display(bundle, raw=True, display_id=True)
            return
        self._handle.update(bundle, raw=True)


def watch(events: Iterable[event_pb2.ExecutionEvent]) -> execution_pb2.SystemResponse:
    """Show an execution in a notebook while it runs, and return its response: `watch(client.follow_to_end(request))`.

    The events may come from `follow_to_end`, `stream` or `follow`. Raises the response's error if it failed.
    """
    try:
        return raise_for_error(_drawn(events))
    finally:
        # Without closing the events, the request would keep running after the user interrupts the cell.
        if isinstance(events, Generator):
            events.close()


def _drawn(events: Iterable[event_pb2.ExecutionEvent]) -> execution_pb2.SystemResponse:
    output, state, begun = LiveOutput(), AnswerState(), Timeline()
    for event in events:
        state.take(event)
        if event.HasField("tool_progress") or not is_streamed(event):
            begun.append(event)
        if output.is_due() and begun:
            answer = state.text[-_TAIL_CHARS:]
            text = f"{count_of(len(begun), 'event')}\n{plain(answer)}"
            output.draw(text, latest_html(begun) + page([block(answer)]))
    output.draw(str(begun), timeline_html(begun))
    if state.response is None:
        raise Internal("the events have ended without a response")
    return state.response
