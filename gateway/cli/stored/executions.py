"""Commands for executions: their timelines, responses, and usage."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from datetime import UTC
from typing import Annotated

import typer

from gateway.cli import options
from gateway.cli.answering.answers import show_response
from gateway.cli.completion import names_of, words
from gateway.cli.output import UsageError, note, print_json, reporting_errors, say, show
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.client import Client
from pagantic_common.client.descriptions import mode_name, state_name
from pagantic_common.client.stored.executions import USAGE_KEYS
from pagantic_common.client.tables import (
    executions_table,
    timeline_table,
    usage_table,
    wide_console,
)
from pagantic_common.domain.errors import DeadlineExceeded

ENDED = frozenset(
    {
        execution_pb2.LIFECYCLE_STATE_COMPLETE,
        execution_pb2.LIFECYCLE_STATE_ERROR,
        execution_pb2.LIFECYCLE_STATE_CANCELLED,
    }
)
POLL_S = 0.3
_STATES = [state_name(value) for value in execution_pb2.LifecycleState.values() if value]
_MODES = [mode_name(value) for value in execution_pb2.Mode.values() if value]


def timeline(
    request_id: options.StoredId,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as a line of JSON.")] = False,
    timeout: options.Timeout = options.TIMEOUT_S,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """Show the events of an execution.

    The events are shown in order, with their durations and causes.
    """
    with reporting_errors(), Client(address, timeout_s=timeout) as client:
        events = client.timeline(request_id)
        if as_json:
            for event in events:
                print_json(event, one_line=True)
            return
        show(timeline_table(events, width=wide_console().width))
        _note_unfinished(client.get_execution(request_id))


def executions(
    *,
    session: Annotated[
        str, typer.Option(metavar="ID", help="Only those of this conversation.", autocompletion=names_of("sessions"))
    ] = "",
    state: Annotated[
        str,
        typer.Option(
            metavar="STATE", help="Only those in this state, such as COMPLETE.", autocompletion=words(_STATES)
        ),
    ] = "",
    mode: Annotated[
        str, typer.Option(metavar="MODE", help="Only those in this mode, such as CHAT.", autocompletion=words(_MODES))
    ] = "",
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Most executions listed.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print each execution as a line of JSON.")] = False,
    timeout: options.Timeout = options.TIMEOUT_S,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """List executions, newest first."""
    with reporting_errors(), Client(address, timeout_s=timeout) as client:
        stored = client.list_executions(session_id=session, state=_state_of(state), mode=_mode_of(mode), limit=limit)
    if as_json:
        for execution in stored:
            print_json(execution, one_line=True)
    else:
        show(executions_table(stored, now_s=time.time()))


def show_execution(
    request_id: options.StoredId,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the execution with its response as JSON.")] = False,
    timeout: options.Timeout = options.TIMEOUT_S,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """Show an execution and its stored response."""
    with reporting_errors(request_id), Client(address, timeout_s=timeout) as client:
        execution = client.get_execution(request_id)
        models = [] if as_json else _models_of(client.timeline(request_id))
    if as_json:
        print_json(execution)
        return
    described = f"{mode_name(execution.mode)} request {execution.request_id}"
    if execution.session_id:
        described += f", session {execution.session_id}"
    described += f": {state_name(execution.state.current)}"
    if models:
        described += f", by {', '.join(models)}"
    note(described)
    _note_unfinished(execution)
    if execution.HasField("response"):
        show_response(execution.response)


def cancel(
    request_id: options.StoredId,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the state that it ended in as JSON.")] = False,
    timeout: options.Timeout = options.TIMEOUT_S,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """Cancel an execution that runs."""
    with reporting_errors(request_id), Client(address, timeout_s=timeout) as client:
        state = state_name(client.cancel(request_id))
    if as_json:
        say(json.dumps({"request_id": request_id, "state": state}))
        return
    note(f"{request_id} ended as {state}")


def resume(
    request_id: options.StoredId,
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end and print the answer.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the state as JSON; with --wait the response.")] = False,
    timeout: options.Timeout = options.TIMEOUT_S,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """Continue an interrupted execution.

    An execution is interrupted when its orchestrator stops before it has ended.
    """
    with reporting_errors(request_id), Client(address, timeout_s=timeout) as client:
        state = state_name(client.resume(request_id))
        if not wait and as_json:
            say(json.dumps({"request_id": request_id, "state": state}))
            return
        if not wait:
            note(f"continues from {state}; `pagantic show {request_id}` gives the answer when it has ended")
            return
        note(f"continues from {state}")
    with reporting_errors(request_id), Client(address, timeout_s=timeout) as client:
        show_response(_wait_for(client, request_id, timeout), as_json=as_json)


def usage(
    *,
    session: Annotated[
        str, typer.Option(metavar="ID", help="Only that of this conversation.", autocompletion=names_of("sessions"))
    ] = "",
    model: Annotated[
        str, typer.Option(metavar="NAME", help="Only that of this model.", autocompletion=names_of("models"))
    ] = "",
    subject: Annotated[str, typer.Option(metavar="NAME", help="Only that of this caller of the tenant.")] = "",
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="Sum by session, model, subject or tenant; more than one by repeating it.",
            autocompletion=words(USAGE_KEYS),
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each total as a line of JSON.")] = False,
    timeout: options.Timeout = options.TIMEOUT_S,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """Show tokens and cost by conversation, model and caller."""
    keys = tuple(by or ())
    with reporting_errors(), Client(address, timeout_s=timeout) as client:
        if unknown := [key for key in keys if key not in USAGE_KEYS]:
            raise UsageError(f"--by {unknown[0]!r}: use {', '.join(USAGE_KEYS)}")
        totals = client.get_usage(session_id=session, model=model, subject=subject, group_by=keys)
    if as_json:
        for total in totals:
            print_json(total, one_line=True)
    else:
        show(usage_table(totals, keys))


def _state_of(name: str) -> execution_pb2.LifecycleState.ValueType:
    if not name:
        return execution_pb2.LIFECYCLE_STATE_UNSPECIFIED
    states = {state_name(value): value for value in execution_pb2.LifecycleState.values() if value}
    if name.upper() not in states:
        raise UsageError(f"--state {name!r}: use one of {', '.join(states)}")
    return states[name.upper()]


def _mode_of(name: str) -> execution_pb2.Mode.ValueType:
    if not name:
        return execution_pb2.MODE_UNSPECIFIED
    modes = {mode_name(value): value for value in execution_pb2.Mode.values() if value}
    if name.upper() not in modes:
        raise UsageError(f"--mode {name!r}: use one of {', '.join(modes)}")
    return modes[name.upper()]


def _models_of(events: Iterable[event_pb2.ExecutionEvent]) -> list[str]:
    """Return the models that answered, without duplicates. For a route, this is the chosen model, not the route."""
    return list(dict.fromkeys(event.inference_end.model for event in events if event.inference_end.model))


def _note_unfinished(execution: execution_pb2.Execution) -> None:
    state = state_name(execution.state.current)
    if execution.interrupted:
        note(f"interrupted in {state}: continue it with `pagantic resume {execution.request_id} --wait`")
    elif execution.HasField("wakes_at"):
        until = execution.wakes_at.ToDatetime(UTC).astimezone()
        note(f"parked in {state} until {until:%Y-%m-%d %H:%M}: `pagantic waits` shows what it waits for")
    elif execution.state.current not in ENDED:
        note(f"still running, in {state}: `pagantic cancel {execution.request_id}` stops it")


def _wait_for(client: Client, request_id: str, timeout_s: float) -> execution_pb2.SystemResponse:
    until_s = time.monotonic() + timeout_s
    while time.monotonic() < until_s:
        execution = client.get_execution(request_id)
        if execution.state.current in ENDED:
            return execution.response
        time.sleep(POLL_S)
    raise DeadlineExceeded(f"execution {request_id!r} had not ended after {timeout_s:.0f} s; it is still running")
