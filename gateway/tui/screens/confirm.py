"""Asks the user before an action that cannot be undone."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button

from gateway.tui.widgets.plain import Plain


class ConfirmScreen(ModalScreen[bool]):
    """Asks a question. The answer that changes nothing has the focus, and Escape selects it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "refuse", "Cancel"),
        Binding("left,right", "app.focus_next", show=False),
    ]

    def __init__(self, question: str, action: str) -> None:
        super().__init__()
        self._question = question
        self._action = action

    def compose(self) -> ComposeResult:
        """Show the question and its answers."""
        with Vertical(classes="window small"):
            yield Plain(self._question)
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="cancel", compact=True)
                yield Button(self._action, id="do", variant="error", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Close the screen with the chosen answer."""
        self.dismiss(event.button.id == "do")

    def action_refuse(self) -> None:
        """Close the screen with the answer that changes nothing."""
        self.dismiss(False)
