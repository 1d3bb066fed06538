"""The pane with the stored conversations. Enter opens a conversation, and Delete deletes it after a question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from gateway.tui.widgets.plain import plain
from gateway.tui.work.conversation import Listed


class SessionsPane(OptionList):
    """Lists conversations, the most recently used first."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("delete,d", "delete", "Delete"),
        Binding("n", "app.begin_conversation", "New", show=False),
    ]

    @dataclass
    class Opened(Message):
        """Posted when the user opens a conversation."""

        listed: Listed

    @dataclass
    class Doomed(Message):
        """Posted when the user wants to delete a conversation."""

        listed: Listed

    def __init__(self) -> None:
        super().__init__(id="sessions", markup=False)
        self.border_title = "sessions"
        self._listed: Sequence[Listed] = ()

    def show(self, listed: Sequence[Listed], current: str, *, has_more: bool = False) -> None:
        """Show the conversations and mark the current conversation. The cursor stays on its conversation."""
        marked = self.highlighted_session if self.has_focus else None
        self._listed = listed
        self.clear_options()
        self.add_options([Option(_prompt_of(session, is_current=session.session_id == current)) for session in listed])
        if not listed:
            self.add_option(Option(plain("none yet"), disabled=True))
        if has_more:
            self.add_option(Option(plain("older ones: `pagantic sessions list`"), disabled=True))
        selected_id = current
        if marked is not None:
            selected_id = marked.session_id
        ids = [session.session_id for session in listed]
        if selected_id in ids:
            self.highlighted = ids.index(selected_id)
        elif ids:
            self.highlighted = 0

    @property
    def highlighted_session(self) -> Listed | None:
        """The conversation under the cursor."""
        if self.highlighted is None or self.highlighted >= len(self._listed):
            return None
        return self._listed[self.highlighted]

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Open a conversation."""
        event.stop()
        if event.option_index < len(self._listed):
            self.post_message(self.Opened(self._listed[event.option_index]))

    def action_delete(self) -> None:
        """Request deletion of the conversation under the cursor."""
        if (listed := self.highlighted_session) is not None:
            self.post_message(self.Doomed(listed))


def _prompt_of(listed: Listed, *, is_current: bool) -> Content:
    sign = "● " if is_current else "  "
    name = plain(sign + " ".join((listed.title or listed.session_id).split()))
    return Content("\n").join([name, plain(f"  {listed.about}").stylize("dim")])
