"""The field for the next message. Enter sends the message, and Ctrl+J inserts a new line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from textual import events
from textual.message import Message
from textual.widgets import TextArea

from gateway.tui.work.choices import refusal_of
from pagantic_common.domain.text.terminal import plain_text

_LINE_KEYS: Final = ("ctrl+j", "shift+enter", "alt+enter")
_SCROLL_KEYS: Final = {
    "pageup": "scroll_page_up",
    "pagedown": "scroll_page_down",
    "ctrl+home": "scroll_home",
    "ctrl+end": "scroll_end",
}
TAB_COLUMNS: Final = 4


class Composer(TextArea):
    """Accepts typed and pasted text. Text that is too long is rejected with a remedy."""

    HISTORY: ClassVar[int] = 100

    @dataclass
    class Sent(Message):
        """Posted when a message is ready to be sent."""

        text: str

    @dataclass
    class Refused(Message):
        """Posted with the reason when text is rejected."""

        reason: str

    @dataclass
    class Scrolled(Message):
        """Posted when a key that scrolls the conversation was pressed. `method` is the widget method to call."""

        method: str

    def __init__(self) -> None:
        super().__init__(soft_wrap=True, show_line_numbers=False, tab_behavior="focus", id="composer")
        self.highlight_cursor_line = False
        self._earlier: list[str] = []
        self._place = 0

    def on_key(self, event: events.Key) -> None:
        """Send the message, insert a new line, scroll the conversation, or recall an earlier message."""
        if event.key == "enter":
            self._send()
        elif event.key in _LINE_KEYS:
            self.insert("\n")
        elif event.key in _SCROLL_KEYS:
            self.post_message(self.Scrolled(_SCROLL_KEYS[event.key]))
        elif event.key not in ("up", "down") or not self._recall(-1 if event.key == "up" else 1):
            return
        event.stop()
        event.prevent_default()

    def on_paste(self, event: events.Paste) -> None:
        """Insert the pasted text without its control characters, or reject it as a whole if it is too long."""
        event.stop()
        event.prevent_default()
        pasted = plain_text(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        if reason := refusal_of(self.text + pasted):
            self.post_message(self.Refused(reason))
            return
        self.insert(pasted)

    def give_back(self, text: str) -> None:
        """Put a message that was not accepted back into the field, unless the field has new text."""
        if not self.text:
            self.load_text(text)
            self.move_cursor(self.document.end)

    def _send(self) -> None:
        text = self.text
        if not text.strip():
            return
        if reason := refusal_of(text):
            self.post_message(self.Refused(reason))
            return
        self.post_message(self.Sent(text))

    def clear_sent(self, text: str) -> None:
        """Clear the field after its message was sent. The message can be recalled."""
        self.load_text("")
        if not self._earlier or self._earlier[-1] != text:
            self._earlier = [*self._earlier, text][-self.HISTORY :]
        self._place = len(self._earlier)

    def _recall(self, step: int) -> bool:
        """Recall the next earlier or later message if possible, and return whether a message was recalled."""
        shows_one = self._place < len(self._earlier) and self.text == self._earlier[self._place]
        place = self._place + step
        if (self.text and not shows_one) or not 0 <= place <= len(self._earlier) or not self._earlier:
            return False
        self._place = place
        text = ""
        if place < len(self._earlier):
            text = self._earlier[place]
        self.load_text(text)
        self.move_cursor(self.document.end)
        return True
