"""The displayed conversation: its turns, with the newest at the end, and notices."""

from __future__ import annotations

from typing import Final

from textual.containers import VerticalScroll

from gateway.tui.widgets.plain import Plain
from gateway.tui.widgets.turn import FailureView, TurnView
from gateway.tui.work.conversation import Conversation, Turn
from gateway.tui.work.steps import Failure

WELCOME: Final = "Ask something. F1 lists the keys."


class Transcript(VerticalScroll):
    """Shows the conversation, and follows text as it is written unless the user scrolls away from the end."""

    def __init__(self) -> None:
        super().__init__(id="transcript")
        self._notice = Plain(WELCOME, classes="notice welcome")
        self._failure = FailureView()
        self._views: list[TurnView] = []
        self._is_open = False

    def on_mount(self) -> None:
        """Begin with the notice, scrolled to the end."""
        self.mount(self._notice, self._failure)
        self.anchor()

    def show(self, conversation: Conversation) -> list[TurnView]:
        """Replace the shown conversation, and return the views of its turns."""
        self.query(TurnView).remove()
        self._views.clear()
        self.clear_failure()
        self._show_notice(conversation)
        self._views += [TurnView(turn, is_open=self._is_open) for turn in conversation.turns]
        self.mount(*self._views, before=self._failure)
        self.anchor()
        return self._views

    def add(self, turn: Turn) -> TurnView:
        """Add a turn at the end, and scroll there."""
        if not self._views and self._notice.has_class("welcome"):
            self._notice.display = False
        view = TurnView(turn, is_open=self._is_open)
        self._views.append(view)
        self.mount(view, before=self._failure)
        self.anchor()
        return view

    def show_failure(self, failure: Failure) -> None:
        """Show a failure that does not belong to a turn."""
        self._notice.display = False
        self._failure.display = True
        self._failure.show_failure(failure)

    def clear_failure(self) -> None:
        """Hide the failure."""
        self._failure.display = False

    def toggle_reasoning(self) -> None:
        """Expand or fold the reasoning of all turns."""
        self._is_open = not self._is_open
        for view in self._views:
            view.open_reasoning(self._is_open)

    def _show_notice(self, conversation: Conversation) -> None:
        text = ""
        if conversation.left_out:
            text = f"{conversation.left_out:,} earlier messages: `pagantic sessions show {conversation.session_id}`"
        elif not conversation.turns:
            text = WELCOME
        self._notice.set_class(not conversation.left_out, "welcome")
        self._notice.display = bool(text)
        self._notice.show(text)
