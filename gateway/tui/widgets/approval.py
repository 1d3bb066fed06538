"""The panel for a tool call that waits for a decision: its arguments, their origin, and the time left."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.message import Message
from textual.widgets import Button, TextArea

from gateway.tui.widgets.plain import MAX_NAME_CHARS, MAX_NOTE_CHARS, Plain, shortened
from pagantic.orchestrator.v1 import approval_pb2
from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from pagantic_common.domain.text.terminal import plain_json

INDENT: Final = 2
# The maximum height of the arguments in the style sheet.
LINES_SEEN: Final = 8
MAX_ARGUMENT_CHARS: Final = 20_000
SETTLE_S: Final = 0.5


class ApprovalPanel(Vertical):
    """Shows the first waiting call. It never takes the focus itself, because typed keys belong to the message."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "app.focus_previous", show=False),
        Binding("right", "app.focus_next", show=False),
    ]

    @dataclass
    class Decided(Message):
        """A decision. `arguments` replaces the arguments of the call. A value of None keeps them."""

        approval: approval_pb2.Approval
        is_approved: bool
        arguments: dict[str, object] | None = None

    def __init__(self) -> None:
        super().__init__(id="approval")
        self.border_title = "a call waits for your decision"
        self.display = False
        self._approval: approval_pb2.Approval | None = None
        self._lines = 0
        self._is_decided = False
        self._replaced_at_s = -SETTLE_S
        self._head = Plain(classes="head")
        self._arguments = Plain(classes="arguments")
        self._changed = TextArea(show_line_numbers=False, soft_wrap=True, tab_behavior="focus", id="changed")
        self._problem = Plain(classes="problem")

    def compose(self) -> ComposeResult:
        """Show the call with the decisions below it."""
        yield self._head
        with VerticalScroll(classes="call-arguments"):
            yield self._arguments
        yield self._changed
        yield self._problem
        with Horizontal(classes="buttons"):
            yield Button("Deny", id="deny", variant="error", compact=True)
            yield Button("Approve", id="approve", variant="success", compact=True)
            yield Button("Change…", id="change", compact=True)

    def on_mount(self) -> None:
        """Update the remaining time every second."""
        self._changed.display = False
        self._problem.display = False
        self.set_interval(1.0, self._show_head)

    @property
    def is_waiting(self) -> bool:
        """Whether a call waits for a decision."""
        return self._approval is not None

    def show(self, waiting: Sequence[approval_pb2.Approval]) -> None:
        """Show the first waiting call, or hide the panel if no call waits."""
        first = waiting[0] if waiting else None
        if _name_of(first) == _name_of(self._approval):
            return
        had_focus = self.has_focus_within
        if self._approval is not None:
            self._replaced_at_s = time.monotonic()
        self._approval = first
        self._is_decided = False
        self._stop_changing()
        self.display = first is not None
        if first is not None:
            described = _described(first)
            self._lines = described.count("\n") + 1
            self._arguments.show(described)
            self._show_head()
        if had_focus and first is not None:
            self.take_focus()

    def take_focus(self) -> None:
        """Focus the button that denies the call."""
        self.query_one("#deny", Button).focus()

    def allow_again(self, approval: approval_pb2.Approval) -> None:
        """Allow another decision after a decision failed, unless the panel now shows another call."""
        if _name_of(approval) == _name_of(self._approval):
            self._is_decided = False

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Send a decision, or open the arguments for changes. A call is decided only once.

        A press immediately after a new call appears was meant for the previous call, and is ignored.
        """
        event.stop()
        if self._approval is None or self._is_decided or time.monotonic() - self._replaced_at_s < SETTLE_S:
            return
        if event.button.id == "change":
            self._begin_changing(self._approval)
        elif event.button.id == "deny":
            self._decide(self.Decided(self._approval, is_approved=False))
        else:
            self._approve(self._approval)

    def _approve(self, approval: approval_pb2.Approval) -> None:
        arguments: dict[str, object] | None = None
        if self._changed.display:
            try:
                arguments = _read_arguments(self._changed.text)
            except ValueError as error:
                self._problem.show(shortened(str(error), MAX_NOTE_CHARS))
                self._problem.display = True
                self._changed.focus()
                return
        self._decide(self.Decided(approval, is_approved=True, arguments=arguments))

    def _decide(self, decided: Decided) -> None:
        self._is_decided = True
        self.post_message(decided)

    def _begin_changing(self, approval: approval_pb2.Approval) -> None:
        self._changed.load_text(indented(approval.arguments_json))
        self._changed.display = True
        self.query_one(".call-arguments").display = False
        self.query_one("#approve", Button).label = "Approve changed"
        self.query_one("#change", Button).display = False
        self._changed.focus()

    def _stop_changing(self) -> None:
        self._changed.display = False
        self._problem.display = False
        self.query_one(".call-arguments").display = True
        self.query_one("#approve", Button).label = "Approve"
        self.query_one("#change", Button).display = True

    def _show_head(self) -> None:
        if (approval := self._approval) is None:
            return
        left_s = max(0.0, approval.expires_at.ToNanoseconds() / 1e9 - time.time())
        reason = shortened(approval.reason, MAX_NOTE_CHARS)
        head = f"{shortened(approval.tool_name, MAX_NAME_CHARS)}: {reason}; denied in {left_s:.0f} s"
        if self._lines > LINES_SEEN:
            head += f"\n{self._lines} lines of arguments: Shift+Tab from Deny scrolls them"
        self._head.show(head)


def indented(text: str) -> str:
    """Return the text as indented JSON. Text that is not JSON is not indented."""
    try:
        value = parse_json(text)
    except JsonTextError:
        return plain_json(text)
    return plain_json(json.dumps(value, indent=INDENT, ensure_ascii=False))


def _described(approval: approval_pb2.Approval) -> str:
    laid_out = indented(approval.arguments_json)
    lines = [laid_out[:MAX_ARGUMENT_CHARS]]
    left_out = len(laid_out) - MAX_ARGUMENT_CHARS
    if left_out > 0:
        lines.append(f"… {left_out:,} more characters are not seen here: `pagantic approvals list` shows them")
    lines += [plain_json(f"{span.argument}: {span.text!r} came from {span.source}") for span in approval.spans]
    return "\n".join(lines)


def _read_arguments(text: str) -> dict[str, object]:
    """Return the changed arguments. Raises ValueError if they are not a JSON object."""
    try:
        arguments = parse_json(text, is_rewritable=True)
    except JsonTextError as error:
        raise ValueError(f"the arguments are not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise ValueError("the arguments must be a JSON object")  # noqa: TRY004 - the text is wrong, not a type
    return arguments


def _name_of(approval: approval_pb2.Approval | None) -> tuple[str, str] | None:
    if approval is None:
        return None
    return approval.request_id, approval.tool_call_id
