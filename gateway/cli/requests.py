"""Commands that send requests to the orchestrator and show what came of them."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from google.protobuf import json_format

from gateway.cli import options
from gateway.cli.output import UsageError, check_response, note, print_json, report, reporting_errors
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.client import Client, chat_request, structured_request
from pagantic_common.client.tables import describe_usage, error_code_name, timeline_table, usage_table, wide_console
from pagantic_common.domain.errors import PaganticError
from pagantic_common.domain.json_text import JsonTextError, parse_json

RequestOf = Callable[[str, str], execution_pb2.SystemRequest]
END_WORDS = ("/exit", "/quit")


def chat(
    text: Annotated[str, typer.Argument(help="what to say, - for stdin, @file; none starts a conversation")] = "",
    *,
    session: Annotated[str, typer.Option(help="conversation to go on with")] = "",
    tool: Annotated[list[str] | None, typer.Option(help="tool the model may call; none named is all of them")] = None,
    tool_choice: Annotated[str, typer.Option(help="auto, required, none, or a tool's name")] = "",
    system: options.System = "",
    max_tokens: options.MaxTokens = 0,
    temperature: options.Temperature = None,
    seed: options.Seed = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT_S,
    as_json: options.AsJson = False,
    address: options.Address = options.DEFAULT_ADDRESS,
) -> None:
    """Chat, once or, without TEXT, turn by turn."""

    def request_of(words: str, session_id: str) -> execution_pb2.SystemRequest:
        hints = options.hints_of(max_tokens, temperature, seed)
        return chat_request(
            words, session_id=session_id, tools=tool or None, tool_choice=tool_choice, system=system, **hints
        )

    with reporting_errors(), Client(address, timeout_s=timeout) as client:
        if not text:
            _converse(client, request_of, session or f"chat-{uuid.uuid4().hex[:8]}")
            return
        request = request_of(options.read_text(text), session)
        response = client.execute(request) if as_json else _stream_answer(client, request)
        if as_json:
            print_json(response)
        check_response(response)


def run(
    request: Annotated[Path, typer.Argument(help="a SystemRequest as proto JSON; - for stdin")],
    *,
    stream: Annotated[bool, typer.Option("--stream", help="print each event as a line of JSON")] = False,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT_S,
    address: options.Address = options.DEFAULT_ADDRESS,
) -> None:
    """Run a request of any mode and print the response as JSON."""
    with reporting_errors():
        parsed = _parse_request(sys.stdin.read() if str(request) == "-" else options.read_file(request))
        with Client(address, timeout_s=timeout) as client:
            response = execution_pb2.SystemResponse()
            if stream:
                for event in client.stream(parsed):
                    print_json(event, one_line=True)
                    if event.HasField("completed"):
                        response = event.completed.response
            else:
                response = client.execute(parsed)
                print_json(response)
            check_response(response)


def structured(
    text: Annotated[str, typer.Argument(help="the text, - for stdin, or @file")],
    *,
    schema: Annotated[Path, typer.Option(help="file with the JSON Schema of the answer")],
    system: options.System = "",
    max_tokens: options.MaxTokens = 0,
    temperature: options.Temperature = None,
    seed: options.Seed = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT_S,
    as_json: options.AsJson = False,
    address: options.Address = options.DEFAULT_ADDRESS,
) -> None:
    """Answer a text with JSON that satisfies a schema."""
    with reporting_errors():
        schema_json = _read_schema(schema)
        words = options.read_text(text)
        hints = options.hints_of(max_tokens, temperature, seed)
        with Client(address, timeout_s=timeout) as client:
            response = client.execute(structured_request(words, schema_json, system=system, **hints))
        if as_json:
            print_json(response)
        elif response.structured_output_json:
            typer.echo(response.structured_output_json)
        for warning in response.validation.warnings:
            note(f"warning: {warning}")
        check_response(response)


def timeline(
    request_id: Annotated[str, typer.Argument(help="the request's id")],
    *,
    as_json: options.AsJson = False,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT_S,
    address: options.Address = options.DEFAULT_ADDRESS,
) -> None:
    """Show what happened in an execution, in order, with durations and causes."""
    with reporting_errors(), Client(address, timeout_s=timeout) as client:
        events = client.timeline(request_id)
        if as_json:
            for event in events:
                print_json(event, one_line=True)
        else:
            console = wide_console()
            console.print(timeline_table(events, width=console.width))


def resume(
    request_id: Annotated[str, typer.Argument(help="the request's id")],
    *,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT_S,
    address: options.Address = options.DEFAULT_ADDRESS,
) -> None:
    """Take an execution up again whose orchestrator died."""
    with reporting_errors(), Client(address, timeout_s=timeout) as client:
        state = execution_pb2.LifecycleState.Name(client.resume(request_id)).removeprefix("LIFECYCLE_STATE_")
        note(f"goes on from {state}; see pagantic timeline {request_id}")


def usage(
    *,
    session: Annotated[str, typer.Option(help="only of this conversation")] = "",
    model: Annotated[str, typer.Option(help="only of this model's alias")] = "",
    as_json: options.AsJson = False,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT_S,
    address: options.Address = options.DEFAULT_ADDRESS,
) -> None:
    """Show tokens and cost by conversation and model."""
    with reporting_errors(), Client(address, timeout_s=timeout) as client:
        totals = client.get_usage(session_id=session, model=model)
    if as_json:
        for total in totals:
            print_json(total, one_line=True)
    else:
        wide_console().print(usage_table(totals))


def _parse_request(text: str) -> execution_pb2.SystemRequest:
    try:
        fields = parse_json(text)
        if not isinstance(fields, dict):
            raise UsageError("the request is not a SystemRequest: it is not a JSON object")
        return json_format.ParseDict(fields, execution_pb2.SystemRequest())
    except (JsonTextError, json_format.ParseError) as error:
        raise UsageError(f"the request is not a SystemRequest: {' '.join(str(error).split())}") from None


def _read_schema(path: Path) -> str:
    text = options.read_file(path)
    try:
        parse_json(text)
    except JsonTextError as error:
        raise UsageError(f"the schema {str(path)!r} is not JSON: {error}") from None
    return text


def _converse(client: Client, request_of: RequestOf, session_id: str) -> None:
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        note(f"conversation {session_id}; /exit or Ctrl-D ends it, Ctrl-C stops an answer")
    while True:
        try:
            words = input("> " if is_terminal else "").strip()
        except (EOFError, KeyboardInterrupt):
            return
        if words in END_WORDS:
            return
        if words:
            _take_turn(client, request_of(words, session_id))


def _take_turn(client: Client, request: execution_pb2.SystemRequest) -> None:
    try:
        check_response(_stream_answer(client, request))
    except PaganticError as error:
        report(error)
    except typer.Exit:  # reported; the conversation goes on
        pass
    except KeyboardInterrupt:
        note("\nstopped")


def _stream_answer(client: Client, request: execution_pb2.SystemRequest) -> execution_pb2.SystemResponse:
    """Print the answer while it is written, tool calls and usage on stderr; returns the response."""
    written = ""
    response = execution_pb2.SystemResponse()
    for event in client.stream(request):
        if event.HasField("content_delta"):
            written += event.content_delta.text
            typer.echo(event.content_delta.text, nl=False)
        elif event.HasField("completed"):
            response = event.completed.response
        elif event.HasField("attempt_discarded") and written:
            written = ""
            typer.echo()
            note(f"attempt {event.attempt_discarded.attempt} discarded: {event.attempt_discarded.reason}")
        elif event.HasField("tool_end"):
            written = _end_line(written)
            note(_describe_tool(event.tool_end))
    if response.content not in written:
        written = _end_line(written)
        typer.echo(response.content, nl=False)
        written = response.content
    _end_line(written)
    if sys.stderr.isatty():
        note(f"{describe_usage(response.token_usage)}; request {response.request_id}")
    return response


def _end_line(written: str) -> str:
    if written and not written.endswith("\n"):
        typer.echo()
        return written + "\n"
    return written


def _describe_tool(tool: event_pb2.ToolEnd) -> str:
    outcome = "ok" if tool.success else error_code_name(tool.error_code)
    return f"tool {tool.tool_name}: {outcome}, {tool.duration_ms:.0f} ms"
