"""A turn of the conversation: the message, and the answer with its reasoning, tool calls and failure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical

from gateway.tui.widgets.growing import MAX_SHOWN, GrowingText
from gateway.tui.widgets.plain import MAX_NAME_CHARS, MAX_NOTE_CHARS, Plain, plain, shortened
from gateway.tui.work.conversation import Turn
from gateway.tui.work.steps import Failure
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import CallPart, TextPart
from pagantic_common.client.descriptions import count_of
from pagantic_common.domain.text.terminal import plain_json

MAX_SAID_CHARS: Final = 1_000
MAX_RESULT_CHARS: Final = 600
MAX_NOTES: Final = 50


class TurnView(Vertical):
    """Shows a turn, and updates it when its answer changes."""

    def __init__(self, turn: Turn, *, is_open: bool) -> None:
        super().__init__(classes="turn")
        self.turn = turn
        self._reasoning = ReasoningView(is_open=is_open)
        self._parts: list[GrowingText | CallView] = []
        self._body = Vertical(classes="answer")
        self._notes = Plain(classes="notes")
        self._failure = FailureView()
        self._cause: Failure | None = None
        self._foot = Plain(classes="foot")
        self._version = -1

    def compose(self) -> ComposeResult:
        """Show all parts of the turn. The parts of the answer are added to its body later."""
        yield Plain(shortened(self.turn.said, MAX_SAID_CHARS), classes="said")
        yield self._reasoning
        yield self._body
        yield self._notes
        yield self._failure
        yield self._foot

    def on_mount(self) -> None:
        """Show the answer so far."""
        self.refresh_answer()

    def refresh_answer(self) -> None:
        """Update the view to the current answer."""
        answer = self.turn.answer
        if answer.version == self._version:
            return
        self._version = answer.version
        self._reasoning.show(answer.reasoning)
        self._show_parts()
        self._notes.display = bool(answer.notes)
        self._notes.show(describe_notes(answer.notes))
        self._foot.display = answer.response is not None and (answer.error is None or answer.was_stopped)
        if answer.response is not None:
            self._foot.show(describe_end(answer.response))
        self._show_failure()

    def _show_failure(self) -> None:
        answer = self.turn.answer
        error = answer.error
        failure = self._cause
        if failure is None and error is not None:
            failure = Failure.of(error, answer.request_id)
        self._failure.display = failure is not None
        if answer.was_stopped:
            self._failure.show_stopped()
        elif failure is not None:
            self._failure.show_failure(failure)

    def fail(self, failure: Failure) -> None:
        """Show the reason that the answer is not available."""
        self._cause = failure
        self._show_failure()

    def open_reasoning(self, is_open: bool) -> None:
        """Show the reasoning, or only its length."""
        self._reasoning.open(is_open)

    def _show_parts(self) -> None:
        parts = self.turn.answer.parts
        for at, part in enumerate(parts):
            if at < len(self._parts) and not _fits(self._parts[at], part):
                self._cut(at)
            if at == len(self._parts):
                self._parts.append(GrowingText(classes="text") if isinstance(part, TextPart) else CallView())
                self._body.mount(self._parts[at])
            view = self._parts[at]
            if isinstance(view, GrowingText) and isinstance(part, TextPart):
                view.show(part)
            elif isinstance(view, CallView) and isinstance(part, CallPart):
                view.show_call(part)
        self._cut(len(parts))

    def _cut(self, at: int) -> None:
        for view in self._parts[at:]:
            view.remove()
        del self._parts[at:]


class ReasoningView(Vertical):
    """The reasoning before an answer: its length in words and, if expanded, its text."""

    def __init__(self, *, is_open: bool) -> None:
        super().__init__(classes="reasoning")
        self._is_open = is_open
        self._part = TextPart()
        self._head = Plain(classes="head")
        self._text = GrowingText(classes="text")

    def compose(self) -> ComposeResult:
        """Show the head with the text below it."""
        yield self._head
        yield self._text

    def show(self, part: TextPart) -> None:
        """Show the reasoning so far."""
        self._part = part
        self.display = part.length > 0
        self._text.display = self._is_open
        sign, does = ("▾", "folds") if self._is_open else ("▸", "opens")
        self._head.show(f"{sign} reasoning, {count_of(len(part.text[:MAX_SHOWN].split()), 'word')} (Ctrl+R {does} it)")
        if self._is_open:
            self._text.show(part)

    def open(self, is_open: bool) -> None:
        """Expand or fold the reasoning."""
        self._is_open = is_open
        self.show(self._part)

    def on_click(self, event: events.Click) -> None:
        """Expand or fold the reasoning on a mouse click."""
        event.stop()
        self.open(not self._is_open)


class CallView(Plain):
    """A tool call, shown in one or a few lines."""

    def __init__(self) -> None:
        super().__init__(classes="call")

    def show_call(self, call: CallPart) -> None:
        """Show the call so far."""
        self.set_class(bool(call.failure), "failed")
        self.show(describe_call(call))


class FailureView(Plain):
    """A failure: its code and message, the request, and the next step."""

    def __init__(self) -> None:
        super().__init__(classes="failure")
        self.display = False

    def show_failure(self, failure: Failure) -> None:
        """Show a failure with its request and the next step."""
        self.remove_class("stopped")
        lines = [f"{failure.code}: {shortened(failure.message, MAX_SAID_CHARS)}"]
        if failure.request_id:
            lines.append(f"request: {failure.request_id}")
        lines.append(f"next: {failure.next_step}")
        self.update(plain("\n".join(lines)))

    def show_stopped(self) -> None:
        """Report that the answer was stopped, which is not a failure."""
        self.add_class("stopped")
        self.show("stopped; the text so far stays in the conversation, marked as cut")


def describe_end(response: execution_pb2.SystemResponse) -> str:
    """Return a short line with the request's id and its usage."""
    usage = response.token_usage
    used = f"{usage.prompt_tokens:,} + {usage.output_tokens:,} tokens"
    if usage.cached_prompt_tokens:
        used += f", {usage.cached_prompt_tokens:,} cached"
    if usage.tokens_per_second:
        used += f", {usage.tokens_per_second:.0f} tokens/s"
    return f"request {response.request_id}: {used}"


def describe_notes(notes: Sequence[str]) -> str:
    """Return the notes below an answer, one per line. Notes beyond the limit are only counted."""
    lines = [shortened(note, MAX_NOTE_CHARS) for note in notes[:MAX_NOTES]]
    if len(notes) > MAX_NOTES:
        lines.append(f"… {count_of(len(notes) - MAX_NOTES, 'more note')}")
    return "\n".join(lines)


def describe_call(call: CallPart) -> str:
    """Return a tool call with its arguments and its result as text."""
    name = shortened(call.name, MAX_NAME_CHARS)
    described = f"{_sign_of(call)} {name}({plain_json(shortened(call.arguments_json, MAX_RESULT_CHARS))})"
    if call.progress:
        described += f" {shortened(call.progress, MAX_NOTE_CHARS)}"
    if call.failure:
        described += f"\n  failed, {call.failure}"
    if call.result:
        described += f"\n  → {shortened(' '.join(call.result.split()), MAX_RESULT_CHARS)}"
    return described


def _sign_of(call: CallPart) -> str:
    if call.failure:
        return "✗"
    return "✓" if call.has_ended else "…"


def _fits(view: GrowingText | CallView, part: TextPart | CallPart) -> bool:
    return isinstance(view, GrowingText) == isinstance(part, TextPart)
