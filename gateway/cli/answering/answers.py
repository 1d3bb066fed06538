"""Shows an answer: its text as it is written, tool calls, steps, votes, cost and warnings."""

from __future__ import annotations

import shutil
import signal
import sys
import threading
from collections.abc import Generator, Iterable
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from types import FrameType
from typing import Final, NoReturn

import typer

from gateway.cli.output import Progress, check_response, note, print_json, say_json, showing_progress
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import approval_pb2, event_pb2, execution_pb2, wait_pb2
from pagantic_common.client import AnswerState, Client, Delta, DeltaKind
from pagantic_common.client.descriptions import (
    TOO_LARGE,
    TRUNCATED,
    describe_outcome,
    describe_step,
    describe_tool_call,
    describe_votes,
)
from pagantic_common.client.event_descriptions import describe_event
from pagantic_common.domain.errors import InvalidRequest, PaganticError
from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from pagantic_common.domain.text.terminal import WordWrap, plain_json, plain_text

# The activity of the model that is shown for each kind of delta.
_DOING = {DeltaKind.TEXT: "writing", DeltaKind.REASONING: "reasoning"}

# Signals that end a program.
ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
EXIT_OF_SIGNAL: Final = 128


def note_request_id(request: execution_pb2.SystemRequest) -> None:
    """Print the request's id on a terminal, so that the user can look it up even after a failure."""
    if sys.stderr.isatty():
        note(f"request {request.request_id}")


def stream_answer(client: Client, request: execution_pb2.SystemRequest) -> execution_pb2.SystemResponse:
    """Stream the answer's text to stdout, write its other parts to stderr, and return the response.

    If the connection is lost, the function connects again and continues.
    """
    writer, state = AnswerWriter(), AnswerState()

    def note_lost(_failure: PaganticError) -> None:
        if sys.stderr.isatty():
            writer.end_line()
        note("the connection was lost; trying again …")

    try:
        with unwinding(), closing(client.follow_to_end(request, on_lost=note_lost)) as events:
            for event in events:
                _show_event(client, writer, event, state.take(event))
        _write_rest(writer, state)
    finally:
        writer.end_line()
    response = response_of(state)
    _note_parts(response)
    if sys.stderr.isatty():
        note(describe_outcome(response))
    _note_warnings(response)
    return response


def wait_for_answer(client: Client, request: execution_pb2.SystemRequest) -> execution_pb2.SystemResponse:
    """Return the response without showing the answer.

    The request is sent as in `stream_answer`. If the connection is lost, the function connects again and continues.
    """
    state = AnswerState()
    with unwinding(), closing(client.follow_to_end(request, on_lost=_note_lost)) as events:
        for event in events:
            state.take(event)
            _note_wait(event)
    return response_of(state)


def answer_quietly(client: Client, request: execution_pb2.SystemRequest) -> execution_pb2.SystemResponse:
    """Run a request without printing its answer; progress and outcome go to stderr.

    If the connection is lost, the function connects again and continues.
    """
    state = AnswerState()
    with (
        showing_progress() as progress,
        unwinding(),
        closing(client.follow_to_end(request, on_lost=_note_lost)) as events,
    ):
        for event in events:
            _show_progress(progress, event, state.take(event))
            _note_wait(event)
    return response_of(state)


def _show_progress(progress: Progress, event: event_pb2.ExecutionEvent, deltas: Iterable[Delta]) -> None:
    for delta in deltas:
        if delta.kind in _DOING:
            progress.show(_DOING[delta.kind], delta.text)
            return
    progress.show(event.action)


def response_of(state: AnswerState) -> execution_pb2.SystemResponse:
    """Return the response of an execution that was followed to its end, or an empty response if it is missing."""
    return state.response or execution_pb2.SystemResponse()


def _note_lost(_failure: PaganticError) -> None:
    note("the connection was lost; trying again …")


def _write_rest(writer: AnswerWriter, state: AnswerState) -> None:
    """Write the part of the answer that was not streamed, for example because the connection was lost."""
    content, turn = response_of(state).content, state.turn_text
    if content in state.streamed_text:
        return
    if not turn or not content.startswith(turn):
        writer.end_line()
        turn = ""
    writer.write(content[len(turn) :])


def _show_event(client: Client, writer: AnswerWriter, event: event_pb2.ExecutionEvent, deltas: Iterable[Delta]) -> None:
    for delta in deltas:
        match delta.kind:
            case DeltaKind.TEXT:
                writer.write(delta.text)
            case DeltaKind.REPEATED:
                writer.end_line()
                note("the orchestrator has resumed the request; the answer begins again")
            case DeltaKind.DISCARDED:
                writer.end_line()
                note(f"attempt {delta.index} discarded: {delta.text}")
    if _is_for_a_person(event):
        writer.end_line()
        _ask_person(client, event)
    elif event.HasField("tool_start") and sys.stderr.isatty():
        writer.end_line()
        note(f"calling {event.tool_start.tool_name} …")
    elif event.HasField("tool_progress") and sys.stderr.isatty():
        note(describe_event(event))


def _is_for_a_person(event: event_pb2.ExecutionEvent) -> bool:
    return event.HasField("approval_requested") or event.wait_began.wait.kind == wait_pb2.WAIT_KIND_QUESTION


def _ask_person(client: Client, event: event_pb2.ExecutionEvent) -> None:
    """Ask the user at the terminal to end a wait, or print the commands that end it."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        _note_wait(event)
    elif event.HasField("approval_requested"):
        _decide_on_terminal(client, event.approval_requested.approval)
    else:
        _answer_on_terminal(client, event.wait_began.wait)


def _decide_on_terminal(client: Client, approval: approval_pb2.Approval) -> None:
    _describe_waiting(approval)
    try:
        is_approved = typer.confirm("run it?", default=False, err=True)
    except typer.Abort:
        raise KeyboardInterrupt from None
    try:
        if is_approved:
            client.approve(approval.request_id, approval.tool_call_id)
        else:
            client.reject(approval.request_id, approval.tool_call_id, reason="rejected at the terminal")
    except PaganticError as error:  # For example, the decision came too late. The execution continues.
        note(str(error))


def _answer_on_terminal(client: Client, question: wait_pb2.Wait) -> None:
    note(plain_text(question.reason))
    try:
        text = typer.prompt("answer", err=True)
    except typer.Abort:
        raise KeyboardInterrupt from None
    try:
        _send_answer(client, question, text)
    except PaganticError as error:  # For example, the answer came too late. The execution continues.
        note(str(error))


def _send_answer(client: Client, question: wait_pb2.Wait, text: str) -> None:
    """Send a typed answer, as JSON if the question has a schema that takes it, otherwise as text."""
    if question.schema_json:
        with suppress(JsonTextError, InvalidRequest):
            client.signal(question.request_id, question.name, parse_json(text))
            return
    client.signal(question.request_id, question.name, text)


def _note_wait(event: event_pb2.ExecutionEvent) -> None:
    """Print the commands with which a person ends a wait."""
    if event.HasField("approval_requested"):
        _note_waiting(event.approval_requested.approval)
    elif _is_for_a_person(event):
        question = event.wait_began.wait
        note(plain_text(f"the model asks: {question.reason}"))
        note(f"answer with: pagantic signal {question.request_id} {question.name} '\"TEXT\"'")


def _describe_waiting(approval: approval_pb2.Approval) -> None:
    arguments = plain_json(approval.arguments_json)
    note(f"{approval.tool_name} {arguments} waits for an approval: {approval.reason}")
    for span in approval.spans:
        note(plain_json(f"  {span.argument}: {span.text!r} came from {span.source}"))


def _note_waiting(approval: approval_pb2.Approval) -> None:
    _describe_waiting(approval)
    left_s = (approval.expires_at.ToDatetime(UTC) - datetime.now(UTC)).total_seconds()
    names = f"{approval.request_id} {approval.tool_call_id}"
    note(f"within {left_s:.0f} s: pagantic approvals approve {names}, or reject {names}")


def show_response(response: execution_pb2.SystemResponse, *, as_json: bool = False) -> None:
    """Print a response. A failed response prints nothing on stdout and exits with the code of its error."""
    if as_json:
        print_json(response)
        check_response(response)
        return
    if response.HasField("error"):
        _show_partial(response)
    elif response.structured_output_json:
        say_json(response.structured_output_json)
    else:
        _write_wrapped(response.content)
    _note_parts(response)
    note(describe_outcome(response))
    _note_warnings(response)
    check_response(response)


class AnswerWriter:
    """Writes text to stdout as it arrives, and wraps it at word boundaries on a terminal."""

    def __init__(self) -> None:
        self._wrap: WordWrap | None = None
        if sys.stdout.isatty():
            self._wrap = WordWrap(shutil.get_terminal_size().columns)
        self._is_at_start = True

    def write(self, text: str) -> None:
        """Write the next part of the text."""
        self._put(plain_text(text))

    def end_line(self) -> None:
        """Begin a new line, unless the output is already at the start of a line."""
        if self._wrap:
            self._echo(self._wrap.flush())
        if not self._is_at_start:
            self._put("\n")

    def _put(self, text: str) -> None:
        if self._wrap:
            text = self._wrap.feed(text)
        self._echo(text)

    def _echo(self, text: str) -> None:
        if text:
            typer.echo(text, nl=False)
            self._is_at_start = text.endswith("\n")


def _write_wrapped(text: str) -> None:
    writer = AnswerWriter()
    writer.write(text)
    writer.end_line()


def _show_partial(response: execution_pb2.SystemResponse) -> None:
    if partial := response.structured_output_json or response.content:
        note(f"the answer so far:\n{partial}")


def _note_parts(response: execution_pb2.SystemResponse) -> None:
    for call in response.tool_calls_made:
        note(describe_tool_call(call))
    for step in response.step_results:
        note(describe_step(step))
    if response.candidates:
        note(describe_votes(response))


def _note_warnings(response: execution_pb2.SystemResponse) -> None:
    texts = [*(warning.message for warning in response.warnings), *response.validation.warnings]
    for text in dict.fromkeys(texts):
        if text != response.error.message:  # The error itself is reported as well.
            note(f"warning: {text}")
    was_cut = response.finish_reason == generation_pb2.FINISH_REASON_LENGTH and not response.HasField("error")
    if was_cut and not any(warning.code in (TRUNCATED, TOO_LARGE) for warning in response.warnings):
        note("warning: the answer was cut at its limit of tokens: raise it with --max-tokens")


@contextmanager
def unwinding() -> Generator[None, None, None]:
    """Make SIGTERM and SIGHUP raise SystemExit inside the block, so that started work is stopped as on Ctrl-C.

    Ignored signals, such as SIGHUP under nohup, stay ignored. Outside the main thread, the function changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in signals:
        signal.signal(number, _leave)
    try:
        yield
    finally:
        for number in signals:
            signal.signal(number, signal.SIG_DFL)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(EXIT_OF_SIGNAL + number)
