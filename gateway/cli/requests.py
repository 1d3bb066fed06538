"""Commands whose answer is shown as a whole: arbitrary requests, structured output, votes and plans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from google.protobuf import json_format

from gateway.cli import options
from gateway.cli.answering.answers import answer_quietly, note_request_id, show_response
from gateway.cli.completion import words
from gateway.cli.output import UsageError, check_response, print_json, reporting_errors
from pagantic.orchestrator.v1 import execution_pb2, plan_pb2
from pagantic_common.client import Client, plan_request, structured_request, vote_request
from pagantic_common.client.requests import STRATEGIES
from pagantic_common.domain.defaults import MAX_MESSAGE_BYTES
from pagantic_common.domain.text.json_text import JsonTextError, parse_json

MessageT = TypeVar("MessageT", execution_pb2.SystemRequest, plan_pb2.ExecutionPlan)
# JSON takes more bytes than the message that it describes: images need a third more, and escapes even more.
_MAX_REQUEST_BYTES = 2 * MAX_MESSAGE_BYTES
_LARGE_REQUEST = "`pagantic run FILE` takes larger ones"


def run(
    request: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A SystemRequest as proto JSON; - or a pipe reads stdin.")
    ] = None,
    *,
    stream: Annotated[bool, typer.Option("--stream", help="Print each event as a line of JSON.")] = False,
    request_id: options.RequestId = "",
    timeout: options.Timeout = options.TIMEOUT_S,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """Run a request of any mode and print the response as JSON."""
    with reporting_errors():
        parsed = _decode(_parse_object(_read(request), "request"), execution_pb2.SystemRequest(), "request")
        parsed.request_id = options.request_id_of(request_id or parsed.request_id)
    with reporting_errors(parsed.request_id), Client(address, timeout_s=timeout, patience_s=0) as client:
        note_request_id(parsed)
        if stream:
            response = _print_events(client, parsed)
        else:
            response = client.execute(parsed)
            print_json(response)
        check_response(response)


def _read(path: Path | None) -> str:
    if path is None:
        return options.read_pipe("the request", max_bytes=_MAX_REQUEST_BYTES, hint=_LARGE_REQUEST)
    if str(path) == "-":
        return options.read_stdin(max_bytes=_MAX_REQUEST_BYTES, hint=_LARGE_REQUEST)
    return options.read_file(path)


def _print_events(client: Client, request: execution_pb2.SystemRequest) -> execution_pb2.SystemResponse:
    response = execution_pb2.SystemResponse()
    for event in client.stream(request):
        print_json(event, one_line=True)
        if event.HasField("completed"):
            response = event.completed.response
    return response


def structured(
    text: options.Words = None,
    *,
    schema: options.Schema,
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
    """Answer a text with JSON that satisfies a schema. Only valid JSON is printed on stdout."""
    with reporting_errors():
        hints = options.options_of(
            options.request_id_of(request_id),
            max_tokens,
            temperature,
            seed,
            model=model,
            context=context,
            stop=stop,
            reasoning=reasoning,
            keep=keep,
        )
        content = options.with_images(options.read_text(text), image)
        request = structured_request(content, options.read_schema(schema), system=system, **hints)
    _answer(request, address, timeout, as_json=as_json)


def vote(
    text: options.Words = None,
    *,
    schema: options.Schema,
    n: Annotated[
        int, typer.Option("-n", metavar="N", min=0, help="Number of answers, 16 at most; 0 is 3.", show_default=False)
    ] = 0,
    strategy: Annotated[
        str,
        typer.Option(
            metavar="NAME", help=f"How votes are counted: {', '.join(STRATEGIES)}.", autocompletion=words(STRATEGIES)
        ),
    ] = "majority",
    min_agreement: Annotated[
        float, typer.Option(metavar="X", min=0, max=1, help="Least share of the votes that the winner needs.")
    ] = 0.0,
    early_stop: Annotated[bool, typer.Option("--early-stop", help="Stop once the winner is certain.")] = False,
    system: options.System = "",
    model: options.Model = "",
    max_tokens: options.MaxTokens = 0,
    temperature: options.Temperature = None,
    seed: options.Seed = None,
    keep: options.Keep = False,
    request_id: options.RequestId = "",
    timeout: options.Timeout = options.TIMEOUT_S,
    as_json: options.AsJson = False,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """Let several answers vote, and print the winner.

    Each answer is JSON that satisfies the schema.
    """
    with reporting_errors():
        if strategy not in STRATEGIES:
            raise UsageError(f"--strategy {strategy!r}: use one of {', '.join(STRATEGIES)}")
        hints = options.options_of(
            options.request_id_of(request_id), max_tokens, temperature, seed, model=model, keep=keep
        )
        request = vote_request(
            options.read_text(text),
            options.read_schema(schema),
            n=n,
            strategy=strategy,
            min_agreement=min_agreement,
            early_stop=early_stop,
            system=system,
            **hints,
        )
    _answer(request, address, timeout, as_json=as_json)


def plan(
    text: options.Words = None,
    *,
    steps: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Proto JSON of an ExecutionPlan, or of a request with one; else the planner plans.",
        ),
    ] = None,
    tool: options.Tool = None,
    context: options.Context = "",
    only_show: Annotated[bool, typer.Option("--show", help="Print the plan as JSON and do not run it.")] = False,
    system: options.System = "",
    model: options.Model = "",
    max_tokens: options.MaxTokens = 0,
    temperature: options.Temperature = None,
    seed: options.Seed = None,
    keep: options.Keep = False,
    request_id: options.RequestId = "",
    timeout: options.Timeout = options.TIMEOUT_S,
    as_json: options.AsJson = False,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """Run a plan of several steps and print its last result."""
    with reporting_errors():
        hints = options.options_of(
            options.request_id_of(request_id), max_tokens, temperature, seed, model=model, context=context, keep=keep
        )
        request = plan_request(options.read_text(text), tools=tool or (), system=system, **hints)
        if steps is not None:
            request.plan.CopyFrom(_read_plan(options.read_file(steps)))
    if not only_show:
        _answer(request, address, timeout, as_json=as_json)
        return
    with reporting_errors(request.request_id), Client(address, timeout_s=timeout) as client:
        print_json(client.create_plan(request))


def _read_plan(text: str) -> plan_pb2.ExecutionPlan:
    fields = _parse_object(text, "plan")
    if "plan" in fields:
        return _decode(fields, execution_pb2.SystemRequest(), "request").plan
    return _decode(fields, plan_pb2.ExecutionPlan(), "plan")


def _answer(request: execution_pb2.SystemRequest, address: str, timeout_s: float, *, as_json: bool) -> None:
    with reporting_errors(request.request_id), Client(address, timeout_s=timeout_s, patience_s=0) as client:
        note_request_id(request)
        show_response(answer_quietly(client, request), as_json=as_json)


def _parse_object(text: str, what: str) -> dict[str, Any]:
    try:
        fields = parse_json(text)
    except JsonTextError as error:
        raise UsageError(f"the {what} is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise UsageError(f"the {what} is not a JSON object")
    return fields


def _decode(fields: dict[str, Any], message: MessageT, what: str) -> MessageT:
    try:
        return json_format.ParseDict(fields, message)
    except json_format.ParseError as error:
        name = message.DESCRIPTOR.name
        raise UsageError(f"the {what} is not a {name}: {' '.join(str(error).split())}") from None
