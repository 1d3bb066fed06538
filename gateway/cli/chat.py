"""`pagantic chat`: runs a single turn, or a conversation turn by turn."""

from __future__ import annotations

import contextlib
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from gateway.cli import options
from gateway.cli.answering.answers import note_request_id, stream_answer, wait_for_answer
from gateway.cli.completion import names_of, words
from gateway.cli.output import UsageError, check_response, note, print_json, report, reporting_errors
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import Client, chat_request
from pagantic_common.domain.errors import PaganticError
from pagantic_common.settings import state_folder

RequestOf = Callable[[str, str, str], execution_pb2.SystemRequest]
END_WORDS = ("/exit", "/quit")
TOOL_CHOICES = ("auto", "required", "none")
HISTORY_LINES = 1000


def chat(
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT",
            help="The text; @FILE reads a file, and - or a pipe stdin. On a terminal a conversation starts without it.",
        ),
    ] = None,
    *,
    lines: Annotated[
        bool, typer.Option("--lines", help="Take each line of stdin as a turn of a conversation.")
    ] = False,
    session: Annotated[
        str,
        typer.Option(metavar="ID", help="Conversation to continue, or to start.", autocompletion=names_of("sessions")),
    ] = "",
    tool: options.Tool = None,
    tool_choice: Annotated[
        str,
        typer.Option(
            metavar="CHOICE",
            help="auto, required, none, or the tool that must be called.",
            autocompletion=words(("auto", "required", "none")),
        ),
    ] = "",
    context: options.Context = "",
    system: options.System = "",
    model: options.Model = "",
    image: options.Image = None,
    stop: options.Stop = None,
    reasoning: options.Reasoning = "",
    max_tokens: options.MaxTokens = 0,
    temperature: options.Temperature = None,
    seed: options.Seed = None,
    keep: options.Keep = False,
    request_id: options.RequestId = "",
    timeout: options.Timeout = options.TIMEOUT_S,
    as_json: options.AsJson = False,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """Chat: a single turn, or a conversation.

    The model is offered only the tools that --tool names.
    """

    def request_of(words: str, session_id: str, turn_id: str) -> execution_pb2.SystemRequest:
        hints = options.options_of(
            turn_id,
            max_tokens,
            temperature,
            seed,
            model=model,
            context=context,
            stop=stop,
            reasoning=reasoning,
            keep=keep,
        )
        tools = _tools_of(tool, tool_choice)
        content = options.with_images(words, image)
        return chat_request(
            content, session_id=session_id, tools=tools, tool_choice=tool_choice, system=system, **hints
        )

    with reporting_errors():
        turn_id = options.request_id_of(request_id)
        if _is_conversation(text, lines=lines):
            _check_conversation(request_id=request_id, image=image, json=as_json)
            request_of("", "", "")  # Build a request now, so that an invalid option fails before the first turn.
            with Client(address, timeout_s=timeout, patience_s=0) as client:
                _converse(client, request_of, session or f"chat-{uuid.uuid4().hex[:8]}")
            return
        request = request_of(options.read_text(text), session, turn_id)
    with reporting_errors(turn_id), Client(address, timeout_s=timeout, patience_s=0) as client:
        _answer_once(client, request, as_json=as_json)


def _is_conversation(text: str | None, *, lines: bool) -> bool:
    if lines and text is not None:
        raise UsageError("--lines takes the turns from stdin: leave the text out")
    return lines or (text is None and sys.stdin is not None and sys.stdin.isatty())


def _check_conversation(**of_one_turn: object) -> None:
    """Raise UsageError if an option was given that cannot apply to every turn."""
    for name, value in of_one_turn.items():
        if value:
            raise UsageError(f"--{name.replace('_', '-')} belongs to one turn: give its text")


def _answer_once(client: Client, request: execution_pb2.SystemRequest, *, as_json: bool) -> None:
    note_request_id(request)
    if as_json:
        response = wait_for_answer(client, request)
        print_json(response)
    else:
        response = stream_answer(client, request)
    check_response(response)


def _tools_of(named: list[str] | None, choice: str) -> list[str]:
    if named:
        return named
    if choice in ("", "none"):
        return []
    if choice in TOOL_CHOICES:
        raise UsageError(f"--tool-choice {choice} offers no tool: name one with --tool")
    return [choice]


def _converse(client: Client, request_of: RequestOf, session_id: str) -> None:
    if not sys.stdin.isatty():
        _take_turns(client, request_of, session_id, prompt="")
        return
    note(f"conversation {session_id}; /exit or Ctrl-D ends it, Ctrl-C stops an answer")
    with _line_editing():
        _take_turns(client, request_of, session_id, prompt="> ")


def _take_turns(client: Client, request_of: RequestOf, session_id: str, *, prompt: str) -> None:
    while True:
        try:
            words = input(prompt).strip()
        except (EOFError, KeyboardInterrupt):
            return
        except UnicodeDecodeError:
            raise UsageError("stdin is not UTF-8 text") from None
        if words in END_WORDS:
            return
        if words:
            _take_turn(client, request_of(words, session_id, options.request_id_of("")))


@contextmanager
def _line_editing() -> Iterator[None]:
    """Enable line editing at the prompt, with a history that is kept in the state folder."""
    try:
        import readline
    except ImportError:
        yield
        return
    path = state_folder() / "chat_history"
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(HISTORY_LINES)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            readline.write_history_file(path)


def _take_turn(client: Client, request: execution_pb2.SystemRequest) -> None:
    try:
        check_response(stream_answer(client, request))
    except PaganticError as error:
        report(error, request_id=request.request_id)
    except typer.Exit:  # The error has been reported, and the conversation continues.
        pass
    except KeyboardInterrupt:
        note("\nstopped; the text so far stays in the conversation, marked as cut")
