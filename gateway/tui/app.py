"""The terminal program's main screen and keys: the list of conversations, the open conversation, and other screens."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Footer

from gateway.tui.chat import ChatPane
from gateway.tui.screens.confirm import ConfirmScreen
from gateway.tui.screens.help import HelpScreen
from gateway.tui.screens.options import OptionsScreen
from gateway.tui.widgets.plain import Plain
from gateway.tui.widgets.sessions import SessionsPane
from gateway.tui.work.conversation import list_conversations
from gateway.tui.work.offered import load_offered
from gateway.tui.work.steps import Failure
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import PaganticError, Unavailable
from pagantic_common.domain.text.terminal import plain_text

WIDE_COLUMNS: Final = 112  # The conversation takes 80 columns. The rest is for the list next to it.
TALL_ROWS: Final = 32
AGAIN_S: Final = 2.0
RETRY_S: Final = 2.0
SHOWN, HIDDEN = "shown-sessions", "hidden-sessions"
ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
EXIT_OF_SIGNAL: Final = 128


class TerminalApp(App[None]):
    """The terminal program, which owns the client while it runs."""

    TITLE = "pagantic"
    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (WIDE_COLUMNS, "-wide")]  # noqa: RUF012 - as textual declares it
    VERTICAL_BREAKPOINTS = [(0, "-short"), (TALL_ROWS, "-tall")]  # noqa: RUF012 - as textual declares it
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+o,f2", "toggle_sessions", "Sessions"),
        Binding("ctrl+n,f3", "begin_conversation", "New"),
        Binding("ctrl+t,f4", "toggle_timeline", "Timeline"),
        Binding("ctrl+r,f5", "toggle_reasoning", "Reasoning"),
        Binding("ctrl+g,f8", "options", "Options"),
        Binding("ctrl+p,f9", "decide", "Decide"),
        Binding("f1", "help", "Help"),
        Binding("escape", "stop", "Stop", show=False),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
        Binding("ctrl+q", "leave", "Quit", priority=True),
    ]

    def __init__(self, client: AsyncClient) -> None:
        super().__init__()
        self.client = client
        self._head = Plain(id="head")
        self._sessions = SessionsPane()
        self._chat = ChatPane(client)
        self._interrupted_at_s = 0.0

    def compose(self) -> ComposeResult:
        """Show the list of conversations next to the open conversation."""
        yield self._head
        with Horizontal(id="panes"):
            yield self._sessions
            yield self._chat
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Start connecting to the services. The message field is ready in the meantime."""
        self._chat.focus_composer()
        self._show_head()
        self.run_worker(self._connect(), group="connect")
        if not self.is_headless:  # A signal ends the program in the same way as a key, so the terminal is restored.
            for sign in ENDING:
                asyncio.get_running_loop().add_signal_handler(sign, self.leave, EXIT_OF_SIGNAL + sign)

    async def _connect(self) -> None:
        """Load the list of models as soon as the services respond."""
        while True:
            try:
                models = await self.client.list_models()
            except Unavailable as error:
                self._chat.show_failure(Failure.of(error))
                await asyncio.sleep(RETRY_S)
                continue
            except PaganticError as error:
                # For example, a key may lack the permission to list models.
                self._chat.show_failure(Failure.of(error))
            else:
                self._chat.windows = {
                    model.name: model.context_window for model in models if "chat" in model.capabilities
                }
                self._chat.clear_failure()
                self._chat.show_status()
            await self._list_sessions()
            return

    async def _list_sessions(self) -> None:
        try:
            listed, has_more = await list_conversations(self.client)
        except PaganticError:  # The conversation pane shows the error.
            return
        self._sessions.show(listed, self._chat.conversation.session_id, has_more=has_more)

    def _show_head(self) -> None:
        conversation = self._chat.conversation
        title = conversation.title
        if not title:
            title = conversation.session_id if conversation.is_stored else "new conversation"
        self._head.show(f"pagantic   {' '.join(title.split())}   {self.client.address}")

    # ---- keys -------------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - textual's
        """Show the decision key only while a call waits, and hide the keys of parts that the list covers."""
        if action == "decide":
            return self._chat.has_waiting_call
        if action in ("toggle_reasoning", "toggle_timeline"):
            return not (self.screen.has_class(SHOWN) and self.screen.has_class("-narrow"))
        return True

    def action_toggle_sessions(self) -> None:
        """Show and focus the list of conversations, or hide it if it has the focus."""
        if self._sessions.display and not self._sessions.has_focus:
            self._sessions.focus()
        else:
            self._show_sessions(not self._sessions.display)

    def _show_sessions(self, is_shown: bool) -> None:
        self.screen.set_class(is_shown, SHOWN)
        self.screen.set_class(not is_shown, HIDDEN)
        if is_shown:
            self._sessions.highlighted = None  # The new list highlights the current conversation.
            self._sessions.focus()
            self._list_again()
        else:
            self._chat.focus_composer()

    def _end_choosing(self) -> None:
        """Return to the conversation. On a narrow screen, this hides the list."""
        self.screen.remove_class(SHOWN)
        self._chat.focus_composer()

    def _list_again(self) -> None:
        self.run_worker(self._list_sessions(), group="list", exclusive=True)

    def action_begin_conversation(self) -> None:
        """Begin a new conversation."""
        self._chat.begin()
        self._end_choosing()

    def action_toggle_timeline(self) -> None:
        """Show or hide the timeline."""
        self._chat.toggle_timeline()

    def action_toggle_reasoning(self) -> None:
        """Expand or fold the reasoning."""
        self._chat.toggle_reasoning()

    def action_decide(self) -> None:
        """Go to the call that waits for a decision."""
        self._chat.focus_approval()

    def action_help(self) -> None:
        """Show all keys."""
        self.push_screen(HelpScreen())

    def action_options(self) -> None:
        """Change the options of the next messages."""
        self.run_worker(self._change_options(), group="options", exclusive=True)

    async def _change_options(self) -> None:
        offered = await load_offered(self.client)
        choices = await self.push_screen_wait(OptionsScreen(self._chat.choices, offered))
        if choices is not None:
            self._chat.choices = choices
            self._chat.show_status()

    def action_stop(self) -> None:
        """Close the view that covers the conversation; otherwise, stop the answer or focus the message field."""
        if self.screen.has_class(SHOWN) or self._chat.leave_approval() or not self._chat.stop():
            self._end_choosing()

    def action_interrupt(self) -> None:
        """Stop the answer. If no answer is being written, quit on the second press."""
        if self._chat.stop():
            return
        now_s = time.monotonic()
        if now_s - self._interrupted_at_s < AGAIN_S:
            self.action_leave()
            return
        self._interrupted_at_s = now_s
        self.notify("Ctrl+C again quits.", markup=False, timeout=AGAIN_S)

    def action_leave(self) -> None:
        """Quit, and print the command that shows the unfinished answer later."""
        self.leave(0)

    def leave(self, return_code: int) -> None:
        """Quit the program with an exit code."""
        message: Text | None = None
        if request_id := self._chat.written_id:
            message = Text(f"the answer goes on: `pagantic show {request_id}`, or its conversation, has it later")
        self.exit(return_code=return_code, message=message)

    # ---- conversations ----------------------------------------------------------------------------------------------

    def on_chat_pane_changed(self, event: ChatPane.Changed) -> None:
        """Show the conversation's name, and update the list."""
        event.stop()
        self._show_head()
        self._list_again()

    def on_sessions_pane_opened(self, event: SessionsPane.Opened) -> None:
        """Open a conversation."""
        event.stop()
        self._chat.open(event.listed.session_id)
        self._end_choosing()

    def on_sessions_pane_doomed(self, event: SessionsPane.Doomed) -> None:
        """Delete a conversation if the user agrees."""
        event.stop()
        self.run_worker(self._delete(event), group="delete", exclusive=True)

    async def _delete(self, event: SessionsPane.Doomed) -> None:
        listed = event.listed
        question = (
            f"Delete the conversation {listed.title or listed.session_id!r}, {listed.about}?\n\n"
            "This cannot be undone; what its executions keep of it is forgotten, too."
        )
        if not await self.push_screen_wait(ConfirmScreen(question, "Delete")):
            return
        try:
            await self.client.delete_session(listed.session_id)
        except PaganticError as error:
            self._chat.show_failure(Failure.of(error))
            return
        if listed.session_id == self._chat.conversation.session_id:
            self._chat.begin()
        await self._list_sessions()
        self._sessions.focus()

    # ---- the end ----------------------------------------------------------------------------------------------------

    async def on_unmount(self) -> None:
        """Close the client's connection."""
        await self.client.close()

    def _fatal_error(self) -> None:
        """End after an internal error with a single message, as all commands do, instead of textual's traceback."""
        error = self._exception
        described = f"INTERNAL: {type(error).__name__}: {plain_text(str(error))}"
        self.panic(Text(f"{described}\nnext: this is a fault of the command itself; please report it"))
