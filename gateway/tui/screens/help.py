"""Shows all keys on a single screen."""

from __future__ import annotations

from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen

from gateway.tui.widgets.plain import Plain

KEYS: Final = """\
In the message
  Enter                send
  Ctrl+J               begin a line (also Shift+Enter, Alt+Enter)
  Up, Down             earlier messages, in an empty field
  PageUp, PageDown     scroll the conversation
  Ctrl+Home, Ctrl+End  its first, its last line

An answer
  Escape, Ctrl+C       stop it; the text so far stays
  Ctrl+R               open or fold reasoning
  Ctrl+P               decide about a tool call that waits for you
  Ctrl+T               timeline: events, services, durations

Conversations
  Ctrl+O               sessions: Enter opens one, Delete deletes it
  Ctrl+N               begin another conversation
  Ctrl+G               options: model, system prompt, tools and more

The program
  Tab, Shift+Tab       next, previous part of the screen
  F1                   this help; Escape closes it
  Ctrl+Q               quit (also Ctrl+C twice); an answer goes on

Where a terminal keeps a key for itself: F2 is Ctrl+O, F3 Ctrl+N,
F4 Ctrl+T, F5 Ctrl+R, F8 Ctrl+G, F9 Ctrl+P.
To copy text, select it with the mouse while you hold Shift.
The context meter is the share of the model's window that the last
inference took: when it is full, the oldest turns are left out.
"""


class HelpScreen(ModalScreen[None]):
    """Shows the keys until a key closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,f1,q", "close", "Close")]

    def compose(self) -> ComposeResult:
        """Show the keys."""
        with VerticalScroll(classes="window") as window:
            window.border_title = "keys"
            window.border_subtitle = "Escape closes"
            yield Plain(KEYS)

    def action_close(self) -> None:
        """Close the screen."""
        self.dismiss(None)
