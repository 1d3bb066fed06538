"""`pagantic replay`: runs a recorded execution again, and shows the differences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli import options
from gateway.cli.answering.answers import answer_quietly, note_request_id
from gateway.cli.failures import EXIT_FAILED
from gateway.cli.output import UsageError, note, print_json, reporting_errors, say, say_json
from gateway.replaying.changes import Changes, read_changes, request_of_replay
from gateway.replaying.comparing import Recorded, compare
from gateway.replaying.describing import describe_comparison, describe_recorded_step
from gateway.written.errors import WrittenError
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import Client
from pagantic_common.domain.errors import PreconditionFailed
from pagantic_common.domain.text.json_text import JsonTextError, parse_json


def replay(
    request_id: options.StoredId,
    *,
    fork: Annotated[
        str, typer.Option(metavar="STEP", help="First step that runs again; else the first that a change affects.")
    ] = "",
    change: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Changes, as YAML or JSON: prompt, hints, tool_results, …"),
    ] = None,
    live_tools: Annotated[
        bool, typer.Option("--live-tools", help="Call all tools again, those that change something too.")
    ] = False,
    steps: Annotated[bool, typer.Option("--steps", help="Only list the recorded steps.")] = False,
    check: Annotated[bool, typer.Option("--check", help="End with exit code 1 if anything differs.")] = False,
    replay_id: Annotated[str, typer.Option("--id", metavar="ID", help="Id of the replay; else one is made.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the steps or the comparison as JSON.")] = False,
    timeout: options.Timeout = options.TIMEOUT_S,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """Run a recorded execution again, and show the differences.

    Its request must have been kept (keep_request). The steps before --fork use their recorded results, and recorded
    tool calls are not made again.
    """
    if steps:
        _list_steps(request_id, timeout, address, as_json=as_json)
        return
    tools = execution_pb2.REPLAY_TOOLS_LIVE if live_tools else execution_pb2.REPLAY_TOOLS_RECORDED
    replay_request = execution_pb2.Replay(request_id=request_id, from_step=fork, tools=tools)
    with reporting_errors(request_id):
        changes = _read_changes(change)
        new_id = options.request_id_of(replay_id)
        with Client(address, timeout_s=timeout) as client:
            request = _request_of(client.get_execution(request_id), changes, new_id, replay_request)
    with reporting_errors(new_id), Client(address, timeout_s=timeout, patience_s=0) as client:
        note_request_id(request)
        answer_quietly(client, request)
        compared = compare(_recorded(client, request_id), _recorded(client, new_id))
    if as_json:
        say_json(json.dumps({"recorded_id": request_id, "replay_id": new_id, **compared.as_json()}, ensure_ascii=False))
    else:
        for line in describe_comparison(compared):
            say(line)
        note(f"the replay is {new_id}")
    if check and not compared.is_same:
        raise typer.Exit(EXIT_FAILED)


def _list_steps(request_id: str, timeout_s: float, address: str, *, as_json: bool) -> None:
    with reporting_errors(request_id), Client(address, timeout_s=timeout_s) as client:
        for step in client.list_steps(request_id):
            if as_json:
                print_json(step, one_line=True)
            else:
                say(describe_recorded_step(step))


def _request_of(
    recorded: execution_pb2.Execution, changes: Changes, replay_id: str, asked: execution_pb2.Replay
) -> execution_pb2.SystemRequest:
    if not recorded.HasField("request"):
        raise PreconditionFailed(
            f"execution {recorded.request_id!r} cannot be replayed: its request did not set keep_request"
        )
    try:
        return request_of_replay(recorded.request, changes, replay_id, asked)
    except WrittenError as error:
        raise UsageError(f"--change: {error}") from None


def _read_changes(path: Path | None) -> Changes:
    if path is None:
        return Changes()
    try:
        return read_changes(_parse(options.read_file(path), path))
    except (JsonTextError, WrittenError) as error:
        raise UsageError(f"{str(path)!r}: {error}") from None


def _parse(text: str, path: Path) -> Any:
    if path.suffix == ".json":
        return parse_json(text, is_rewritable=True)
    try:
        from gateway.written.plain_yaml import parse_yaml
    except ImportError:
        raise UsageError("YAML needs a package: pip install 'pagantic[eval]', or write the changes as .json") from None
    return parse_yaml(text)


def _recorded(client: Client, request_id: str) -> Recorded:
    response = client.get_execution(request_id).response
    return Recorded(response, client.list_steps(request_id), client.timeline(request_id))
