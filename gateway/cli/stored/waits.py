"""Commands for the open waits of executions, and for the signals that end them."""

from __future__ import annotations

from datetime import UTC
from typing import Annotated

import typer

from gateway.cli import options
from gateway.cli.completion import names_of
from gateway.cli.output import UsageError, note, print_json, reporting_errors, show
from pagantic.orchestrator.v1 import orchestrator_service_pb2, wait_pb2
from pagantic_common.client import Client
from pagantic_common.client.tables import cell, list_table
from pagantic_common.domain.text.json_text import JsonTextError, parse_json


def waits(
    *,
    request: Annotated[
        str, typer.Option(metavar="ID", help="Only waits of this request.", autocompletion=names_of("executions"))
    ] = "",
    timeout: options.Timeout = 10.0,
    as_json: options.AsJson = False,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """List the open waits of executions.

    A wait is for an approval, a signal, an answer or a time. The oldest comes first.
    """
    with reporting_errors(), Client(address, timeout_s=timeout) as client:
        open_waits = client.list_waits(request_id=request)
    if as_json:
        print_json(orchestrator_service_pb2.ListWaitsResponse(waits=open_waits))
        return
    table = list_table(("request", "wait", "kind", "name", "why", "waits until"))
    for wait in open_waits:
        kind = wait_pb2.WaitKind.Name(wait.kind).removeprefix("WAIT_KIND_").lower()
        until = f"{wait.expires_at.ToDatetime(UTC).astimezone():%Y-%m-%d %H:%M:%S}"
        table.add_row(*map(cell, (wait.request_id, wait.wait_id, kind, wait.name, wait.reason, until)))
    show(table)


def signal(
    request_id: options.StoredId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the signal.")],
    payload: Annotated[str, typer.Argument(metavar="JSON", help="Payload, a JSON value.")] = "null",
    *,
    signal_id: Annotated[
        str, typer.Option("--id", metavar="ID", help="Id of the signal, so that it may be sent again.")
    ] = "",
    as_json: options.AsJson = False,
    timeout: options.Timeout = 10.0,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """Send a signal to an execution.

    The signal is kept until a wait for its name takes it.
    """
    with reporting_errors(request_id):
        try:
            value = parse_json(payload)
        except JsonTextError as error:
            raise UsageError(f"the payload is not JSON: {error}; a text needs its quotes, as in '\"yes\"'") from None
        with Client(address, timeout_s=timeout) as client:
            sent_id = client.signal(request_id, name, value, signal_id=signal_id)
    if as_json:
        print_json(orchestrator_service_pb2.SignalExecutionResponse(signal_id=sent_id))
        return
    note(f"signal {name} is stored as {sent_id}")
