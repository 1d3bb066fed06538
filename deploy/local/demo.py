"""Starts the system and shows a request of each kind, sent as any client would send it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.json_format import Parse
from rich.console import Console

from deploy.local import record
from deploy.local.system import LocalSystem
from pagantic.constraint.v1 import contract_pb2
from pagantic.context.v1 import collection_pb2, context_service_pb2, context_service_pb2_grpc
from pagantic.inference.v1 import inference_service_pb2, inference_service_pb2_grpc
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.client import Client, ask_request, chat_request, structured_request, vote_request
from pagantic_common.client.descriptions import (
    describe_citation,
    describe_outcome,
    describe_step,
    describe_tool_call,
    describe_votes,
    error_code_name,
)
from pagantic_common.client.tables import cell, wide_console
from pagantic_common.domain.errors import PaganticError
from pagantic_common.domain.text.terminal import plain_json
from pagantic_common.rpc.access.tls.calling import find_target

EXAMPLES = Path(__file__).parent.parent / "examples"
SEVERITY_SCHEMA = {
    "type": "object",
    "properties": {"severity": {"enum": ["low", "medium", "high"]}},
    "required": ["severity"],
    "additionalProperties": False,
}
PROGRESS_INTERVAL_S = 2.0
STOPPED_INTERVAL_S = 1.0
CALL_TIMEOUT_S = 10.0
SMALL_MODEL = "SmolLM2-135M"
STREAMED_ACTIONS = ("content_delta", "reasoning_delta")


@dataclass(frozen=True, slots=True)
class DemoRequest:
    """A request of the demo, with its title."""

    title: str
    request: execution_pb2.SystemRequest


def demo_requests() -> list[DemoRequest]:
    """Return the requests: a chat, a chat with a tool, text to JSON, a vote, an answer with citations, and a plan."""
    report = (EXAMPLES / "incident.txt").read_text(encoding="utf-8")
    schema = (EXAMPLES / "incident_schema.json").read_text(encoding="utf-8")
    return [
        DemoRequest(
            "CHAT: a question",
            chat_request(
                "In one sentence: what is a lighthouse for?", tools=[], max_tokens=64, temperature=0.0, seed=1
            ),
        ),
        DemoRequest(
            "CHAT with a tool: the decoder makes sure that the calculator is called",
            chat_request(
                "Calculate 17*23",
                tools=["calculator"],
                tool_choice="required",
                system="You are a helpful assistant with tools.",
                max_tokens=128,
                temperature=0.0,
                seed=1,
            ),
        ),
        DemoRequest(
            "STRUCTURED: an incident report into JSON",
            structured_request(
                f"Extract title, severity, affected service and whether it is resolved.\n\n{report}",
                schema,
                max_tokens=200,
                temperature=0.0,
                seed=1,
            ),
        ),
        DemoRequest(
            "REDUNDANT: a vote of five on the severity",
            vote_request(f"How severe is this incident?\n\n{report}", SEVERITY_SCHEMA, n=5, max_tokens=40, seed=1),
        ),
        DemoRequest(
            "CITATIONS: an answer from deploy/examples; the decoder lets quotes be words of their source alone",
            ask_request(
                "examples",
                "Why did payments fail?",
                citations=contract_pb2.Citations(max_claims=1),
                max_tokens=400,
                temperature=0.3,
                seed=3,
            ),
        ),
        DemoRequest(
            "PLAN: retrieve, rerank, infer, validate over deploy/examples",
            Parse((EXAMPLES / "plan_request.json").read_text(encoding="utf-8"), execution_pb2.SystemRequest()),
        ),
    ]


def run_demo(system: LocalSystem, *, once: bool) -> int:
    """Run the demo, and return 0 if all requests ended without an error. Services that the demo started are stopped.

    Raises StartFailed also if the system is already running with different settings.
    """
    console = wide_console()
    was_up = not system.start()
    if was_up:
        system.check_same_settings()
        console.print("already up: the demo uses the running services, and leaves them running")
    try:
        failed = _show_requests(system, console)
        if not once:
            console.print(f"serving on {system.areas[0].address}; Ctrl-C stops the demo")
            serve_until_stopped(system)
    finally:
        if not was_up:
            system.stop()
    if failed:
        return 1
    return 0


def serve_until_stopped(system: LocalSystem) -> None:
    """Wait for Ctrl-C, or for another command that stops the services."""
    try:
        while record.load(system.state) is not None:
            time.sleep(STOPPED_INTERVAL_S)
    except KeyboardInterrupt:
        return
    print("the services were stopped by another command, or their supervisor has ended", flush=True)


def _show_requests(system: LocalSystem, console: Console) -> int:
    failed = 0
    addresses = {area.name: area.address for area in system.areas}
    console.print(cell("\n" + describe_model(_default_model(addresses["inference"]))))
    _ingest_examples(addresses["context"])
    ids: list[str] = []
    with Client(system.areas[0].address) as client:
        for example in demo_requests():
            console.rule(f"[bold]{example.title}", align="left")
            console.print(cell(f"> {_question(example.request)}"), style="dim")
            try:
                response = _answer(client, example.request, console)
                _show_response(response, console)
                ids.append(response.request_id)
                failed += response.HasField("error")
            except PaganticError as error:
                failed += 1
                console.print(cell(f"failed: {error}"), style="red")
    console.rule(align="left")
    console.print(f"{len(demo_requests()) - failed} of {len(demo_requests())} requests ended without error")
    _print_next(ids, console)
    return failed


def describe_model(name: str) -> str:
    """Describe the quality of the answers to expect from a model."""
    described = f"The model {name} answers."
    if name.startswith(SMALL_MODEL):
        described = f"The model {name} has 135 million parameters: its wording is poor and its facts are often wrong."
    return f"{described} What is guaranteed is structure: tool calls and JSON are enforced while the model writes."


def _default_model(address: str) -> str:
    """Return the name of the model that serves requests without a model name."""
    with find_target(address, os.environ).open_blocking() as channel:
        stub = inference_service_pb2_grpc.InferenceServiceStub(channel)
        request = inference_service_pb2.ListModelsRequest()
        return stub.ListModels(request, timeout=CALL_TIMEOUT_S).models[0].name


def _print_next(ids: Sequence[str], console: Console) -> None:
    """Print commands that the user can try in another terminal."""
    commands = [
        *(f"pagantic timeline {request_id}" for request_id in ids[-1:]),
        "pagantic chat",
        "pagantic executions",
        "pagantic --help",
    ]
    console.print("\nNext, in another terminal while this runs, after `source .venv/bin/activate`:")
    for command in commands:
        console.print(f"  {command}")
    console.print()


def _ingest_examples(address: str) -> None:
    """Store the text for the plan's retrieve step."""
    path = EXAMPLES / "incident.txt"
    document = collection_pb2.Document(source=f"deploy/examples/{path.name}", content=path.read_text(encoding="utf-8"))
    with find_target(address, os.environ).open_blocking() as channel:
        stub = context_service_pb2_grpc.ContextServiceStub(channel)
        request = context_service_pb2.IngestRequest(collection="examples", documents=[document])
        stub.Ingest(request, timeout=CALL_TIMEOUT_S)


def _question(request: execution_pb2.SystemRequest) -> str:
    lines = request.messages[-1].content.splitlines()
    if len(lines) == 1:
        return lines[0]
    return f"{lines[0]} (and {len(lines) - 1} more lines)"


def _answer(client: Client, request: execution_pb2.SystemRequest, console: Console) -> execution_pb2.SystemResponse:
    started_s = last_s = time.monotonic()
    response = execution_pb2.SystemResponse()
    characters = 0
    action = "starting"
    with console.status("starting") as spinner:
        for event in client.stream(request):
            kind = event.WhichOneof("event")
            if kind == "completed":
                response = event.completed.response
            if kind in STREAMED_ACTIONS:
                characters += len(_delta_text(event))
            else:
                action = event.action
            now_s = time.monotonic()
            line = f"{action} … {now_s - started_s:.0f} s, {characters} characters"
            spinner.update(line)
            if not console.is_terminal and now_s - last_s > PROGRESS_INTERVAL_S:
                last_s = now_s
                console.print(line)
    return response


def _delta_text(event: event_pb2.ExecutionEvent) -> str:
    return event.content_delta.text + event.reasoning_delta.text


def _show_response(response: execution_pb2.SystemResponse, console: Console) -> None:
    for call in response.tool_calls_made:
        console.print(cell(describe_tool_call(call)), style="cyan")
    for step in response.step_results:
        console.print(cell(describe_step(step)), style="cyan")
    if response.citations:
        console.print(cell(response.content))
        for citation in response.citations:
            console.print(cell(describe_citation(citation)), style="cyan")
    elif response.structured_output_json:
        console.print_json(plain_json(response.structured_output_json))
    else:
        console.print(cell(response.content))
    if response.candidates:
        console.print(cell(describe_votes(response)))
    if response.HasField("error"):
        console.print(cell(f"failed: {error_code_name(response.error.code)}: {response.error.message}"), style="red")
    console.print(cell(describe_outcome(response)), style="dim")
