"""Commands for tool calls that wait for an approval."""

from __future__ import annotations

from datetime import UTC
from typing import Annotated, Any

import typer

from gateway.cli import options
from gateway.cli.completion import names_of
from gateway.cli.output import UsageError, print_json, reporting_errors, say, show
from gateway.cli.tree import PlainCommand
from pagantic.orchestrator.v1 import approval_pb2, orchestrator_service_pb2
from pagantic_common.client import Client
from pagantic_common.client.tables import cell, list_table
from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from pagantic_common.domain.text.terminal import plain_json

approvals = typer.Typer(help="List tool calls that wait, approve and reject them.", no_args_is_help=True)

RequestId = Annotated[
    str, typer.Argument(metavar="REQUEST", help="Request whose call waits.", autocompletion=names_of("executions"))
]
CallId = Annotated[str, typer.Argument(metavar="CALL", help="The call that waits.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Reason, shown to the model and in the timeline.")]


@approvals.command("list", cls=PlainCommand)
def list_approvals(
    *,
    request: Annotated[
        str, typer.Option(metavar="ID", help="Only calls of this request.", autocompletion=names_of("executions"))
    ] = "",
    timeout: options.Timeout = 10.0,
    as_json: options.AsJson = False,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """List the calls that wait, the oldest first."""
    with reporting_errors(), Client(address, timeout_s=timeout) as client:
        waiting = client.list_approvals(request_id=request)
    if as_json:
        print_json(orchestrator_service_pb2.ListApprovalsResponse(approvals=waiting))
        return
    table = list_table(("request", "call", "tool", "arguments", "why", "waits until"))
    for approval in waiting:
        until = f"{approval.expires_at.ToDatetime(UTC).astimezone():%Y-%m-%d %H:%M:%S}"
        names = (
            approval.request_id,
            approval.tool_call_id,
            approval.tool_name,
            plain_json(approval.arguments_json),
            approval.reason,
            until,
        )
        table.add_row(*map(cell, names))
    show(table)


@approvals.command("approve", cls=PlainCommand)
def approve(
    request: RequestId,
    call: CallId,
    *,
    arguments: Annotated[
        str, typer.Option(metavar="JSON", help="Arguments to call the tool with, instead of those of the call.")
    ] = "",
    reason: Reason = "",
    timeout: options.Timeout = 10.0,
    as_json: options.AsJson = False,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """Let a call run."""
    with reporting_errors():
        changed = _read_arguments(arguments)
        with Client(address, timeout_s=timeout) as client:
            approval = client.approve(request, call, arguments=changed, reason=reason)
    _show(approval, as_json=as_json)


@approvals.command("reject", cls=PlainCommand)
def reject(
    request: RequestId,
    call: CallId,
    *,
    reason: Reason = "",
    timeout: options.Timeout = 10.0,
    as_json: options.AsJson = False,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """Deny a call; the model is informed, and continues without it."""
    with reporting_errors(), Client(address, timeout_s=timeout) as client:
        approval = client.reject(request, call, reason=reason)
    _show(approval, as_json=as_json)


def _read_arguments(text: str) -> dict[str, Any] | None:
    if not text:
        return None
    try:
        arguments = parse_json(text)
    except JsonTextError as error:
        raise UsageError(f"--arguments is not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise UsageError("--arguments must be a JSON object")
    return arguments


def _show(approval: approval_pb2.Approval, *, as_json: bool) -> None:
    if as_json:
        print_json(approval)
        return
    decision = approval_pb2.ApprovalDecision.Name(approval.resolution.decision).removeprefix("APPROVAL_DECISION_")
    say(f"{approval.tool_call_id} {decision.lower()}")
