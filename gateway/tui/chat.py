"""The conversation in the terminal: sends messages, follows and stops answers, and decides calls."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.worker import Worker

from gateway.tui.widgets.approval import ApprovalPanel
from gateway.tui.widgets.composer import Composer
from gateway.tui.widgets.status import StatusLine
from gateway.tui.widgets.timeline import TimelinePane
from gateway.tui.widgets.transcript import Transcript
from gateway.tui.widgets.turn import TurnView
from gateway.tui.work.choices import Choices, as_before, new_session_id
from gateway.tui.work.conversation import Conversation, Turn, load_conversation, name_conversation
from gateway.tui.work.running import Running
from gateway.tui.work.steps import Failure
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import PaganticError

DRAW_S: Final = 0.1


class ChatPane(Vertical):
    """Shows a conversation, with the timeline of its newest execution."""

    class Changed(Message):
        """Posted when a conversation began, was named or got a new turn."""

    def __init__(self, client: AsyncClient) -> None:
        super().__init__(id="chat")
        self.client = client
        self.choices = Choices()
        self.windows: dict[str, int] = {}
        self.conversation = Conversation(new_session_id())
        self._written: Running | None = None
        self._following: Worker[None] | None = None
        self._newest: TurnView | None = None
        self._opening = ""
        self._untaken: execution_pb2.SystemRequest | None = None
        self._used = (0, 0)
        self._transcript = Transcript()
        self._timeline = TimelinePane()
        self._approval = ApprovalPanel()
        self._composer = Composer()
        self._status = StatusLine()

    def compose(self) -> ComposeResult:
        """Show the conversation above the field for the next message."""
        yield self._transcript
        yield self._timeline
        yield self._approval
        yield self._composer
        yield self._status

    def on_mount(self) -> None:
        """Limit how often the screen is drawn, however fast events arrive."""
        self._timeline.display = False
        self.set_interval(DRAW_S, self._draw)

    @property
    def written_id(self) -> str:
        """The request id of the answer that is being written, or empty if no answer is being written."""
        if self._written is None:
            return ""
        return self._written.answer.request_id

    @property
    def has_waiting_call(self) -> bool:
        """Whether a call waits for a decision."""
        return self._approval.is_waiting

    def focus_composer(self) -> None:
        """Direct the keys to the message field."""
        self._composer.focus()

    def focus_approval(self) -> None:
        """Direct the keys to the decision on the waiting call."""
        if self._approval.is_waiting:
            self._approval.take_focus()

    def leave_approval(self) -> bool:
        """Direct the keys back to the message field, and return whether they were directed to a decision."""
        was_deciding = self._approval.has_focus_within
        if was_deciding:
            self.focus_composer()
        return was_deciding

    def toggle_timeline(self) -> None:
        """Show or hide the timeline."""
        self._timeline.display = not self._timeline.display
        self._show_timeline()

    def toggle_reasoning(self) -> None:
        """Expand or fold the reasoning of all turns."""
        self._transcript.toggle_reasoning()

    def show_failure(self, failure: Failure) -> None:
        """Show a failure that does not belong to a turn."""
        self._transcript.show_failure(failure)

    def clear_failure(self) -> None:
        """Hide the failure that does not belong to a turn."""
        self._transcript.clear_failure()

    # ---- conversations ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a new conversation. An answer that is being written continues in the background."""
        self._cancel_opening()
        self._show(Conversation(new_session_id()))

    def open(self, session_id: str) -> None:
        """Open a stored conversation. Until then, the previous conversation stays visible and accepts no messages."""
        self._opening = session_id
        self.run_worker(self._open(session_id), group="open", exclusive=True)
        self.show_status()

    async def _open(self, session_id: str) -> None:
        try:
            conversation = await load_conversation(self.client, session_id)
        except PaganticError as error:
            self._opening = ""
            self.show_failure(Failure.of(error))
            self.show_status()
        else:
            self._opening = ""
            self._show(conversation)

    def _cancel_opening(self) -> None:
        self._opening = ""
        self.workers.cancel_group(self, "open")
        self.show_status()

    def _show(self, conversation: Conversation) -> None:
        self.leave()
        self.conversation = conversation
        views = self._transcript.show(conversation)
        self._newest = views[-1] if views else None
        self._used = (0, 0)
        if conversation.is_running:
            self._follow(views[-1], None)
        self._show_timeline()
        self.show_status()
        self.focus_composer()
        self.post_message(self.Changed())

    def leave(self) -> None:
        """Stop following the answer. It continues in the background and appears in its conversation later."""
        self._name_left()
        if self._following is not None:
            self._following.cancel()
        self._following = self._written = None
        self._show_waiting()

    def _name_left(self) -> None:
        """Name the conversation that the user leaves while its first answer is still being written."""
        if self._newest is None or not self.written_id or self.conversation.is_stored:
            return
        if self._newest.turn.answer.sequence:
            naming = name_conversation(self.client, self.conversation.session_id, self._newest.turn.said)
            self.run_worker(self._name_then_list(naming), group="names")

    async def _name_then_list(self, naming: Coroutine[Any, Any, str]) -> None:
        await naming
        self.post_message(self.Changed())

    # ---- answers ----------------------------------------------------------------------------------------------------

    def on_composer_sent(self, event: Composer.Sent) -> None:
        """Send a message, but keep it in the field while an answer is written or a conversation is opened."""
        event.stop()
        if self._opening:
            self._warn("A conversation is being opened: wait until it is seen, or stay in this one with Escape.")
            return
        if self._written is not None:
            self._warn("An answer is being written: wait for its end, or stop it with Escape.")
            return
        request = self.choices.request(event.text, self.conversation.session_id)
        as_before(request, self._untaken)
        self._untaken = request
        self._composer.clear_sent(event.text)
        self.clear_failure()
        self._follow(self._transcript.add(Turn.of(event.text, request.request_id)), request)

    def on_composer_refused(self, event: Composer.Refused) -> None:
        """Show the reason that text was rejected."""
        event.stop()
        self._warn(event.reason)

    def on_composer_scrolled(self, event: Composer.Scrolled) -> None:
        """Scroll the conversation with keys of the message field."""
        event.stop()
        getattr(self._transcript, event.method)()

    def _follow(self, view: TurnView, request: execution_pb2.SystemRequest | None) -> None:
        self._newest = view
        self._written = Running(self.client, view.turn.answer, request)
        self._following = self.run_worker(self._follow_to_end(self._written, view), group="answers")

    async def _follow_to_end(self, running: Running, view: TurnView) -> None:
        error = await running.follow()
        if error is not None:
            self._fail(view, error)
        self._draw()
        if self._written is running:
            self._written = self._following = None
            self._draw_others()
        if view.turn.answer.sequence:
            self._untaken = None
            await self._note_stored(view.turn)

    def _fail(self, view: TurnView, error: PaganticError) -> None:
        """Show the reason that an answer failed. A message that was not accepted returns to the field."""
        request_id = ""
        if view.turn.answer.sequence:
            request_id = view.turn.answer.request_id
        else:
            self._composer.give_back(view.turn.said)
        view.fail(Failure.of(error, request_id))

    async def _note_stored(self, turn: Turn) -> None:
        """Name the conversation after its first message, and update the list."""
        conversation, answer = self.conversation, turn.answer
        is_kept = answer.error is None or (answer.was_stopped and bool(answer.text))
        if is_kept and not conversation.is_stored:
            conversation.is_stored = True
            conversation.title = await name_conversation(self.client, conversation.session_id, turn.said)
        self.post_message(self.Changed())

    def stop(self) -> bool:
        """Cancel the opening of a conversation or stop the answer. Return whether there was work to stop."""
        running = self._written
        if self._opening:
            self._cancel_opening()
        elif running is None:
            return False
        elif running.is_lost:
            self._warn("The connection is lost, so the answer may go on; its conversation has it later.")
            self.leave()
            self.show_status()
        elif running.is_stopping:
            return False
        else:
            self.run_worker(self._stop(running), group="stop")
        return True

    async def _stop(self, running: Running) -> None:
        error = await running.stop()
        if error is not None and self._written is running:  # An answer that has ended in the meantime needs no stop.
            self._warn_of(error)

    def on_approval_panel_decided(self, event: ApprovalPanel.Decided) -> None:
        """Send a decision on a call."""
        event.stop()
        self.run_worker(self._decide(event), group="decide")

    async def _decide(self, decided: ApprovalPanel.Decided) -> None:
        approval = decided.approval
        ids = (approval.request_id, approval.tool_call_id)
        try:
            if decided.is_approved:
                await self.client.approve(*ids, arguments=decided.arguments)
            else:
                await self.client.reject(*ids, reason="rejected at the terminal")
        except PaganticError as error:
            # The decision may have come too late. The execution continues.
            self._warn_of(error)
            self._approval.allow_again(approval)
        except ValueError as error:  # The arguments cannot be encoded.
            self._warn(f"The decision was not sent: {error}")
            self._approval.allow_again(approval)

    # ---- display ----------------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        if self._written is None or self._newest is None:
            return
        self._newest.refresh_answer()
        self._draw_others()

    def _draw_others(self) -> None:
        self._show_waiting()
        self._show_timeline()
        self.show_status()

    def _show_waiting(self) -> None:
        was_deciding, was_waiting = self._approval.has_focus_within, self._approval.is_waiting
        waiting = self._written.answer.waiting.values() if self._written else ()
        self._approval.show([*waiting])
        if was_deciding and not self._approval.is_waiting:
            self.focus_composer()
        if was_waiting != self._approval.is_waiting:
            self.app.refresh_bindings()

    def _show_timeline(self) -> None:
        self._timeline.show(self._newest.turn.answer.events if self._newest else ())

    def show_status(self) -> None:
        """Show the current activity and the usage of the context window."""
        state, is_warning = self.choices.model or next(iter(self.windows), ""), False
        if self._opening:
            state = "opening…"
        elif self._written is not None:
            state, is_warning = self._written.described()
        self._status.show_state(state, is_warning=is_warning)
        self._status.show_usage(*self._usage())

    def _usage(self) -> tuple[int, int]:
        """Return the number of tokens that the latest inference used, and the size of its context window."""
        window = self.windows.get(self.choices.model) or next(iter(self.windows.values()), 0)
        if self._newest is not None:
            used = self._newest.turn.answer.usage(window)
            if used[0]:
                self._used = used
        return self._used[0], self._used[1] or window

    def _warn_of(self, error: PaganticError) -> None:
        self._warn(Failure.of(error).in_short)

    def _warn(self, text: str) -> None:
        self.notify(text, severity="warning", markup=False, timeout=8)
