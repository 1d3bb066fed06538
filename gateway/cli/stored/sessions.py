"""Commands for stored conversations."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from gateway.cli import options
from gateway.cli.completion import names_of
from gateway.cli.output import note, print_json, reporting_errors, say, show
from gateway.cli.tree import PlainCommand
from pagantic_common.client import Client
from pagantic_common.client.descriptions import role_name
from pagantic_common.client.tables import sessions_table

sessions = typer.Typer(help="List, show and delete stored conversations.", no_args_is_help=True)
SessionId = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the conversation.", autocompletion=names_of("sessions"))
]


@sessions.command("list", cls=PlainCommand)
def list_sessions(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print each conversation as a line of JSON.")] = False,
    timeout: options.Timeout = options.TIMEOUT_S,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """List conversations, last used first."""
    with reporting_errors(), Client(address, timeout_s=timeout) as client:
        stored = client.list_sessions()
    if as_json:
        for session in stored:
            print_json(session, one_line=True)
    else:
        show(sessions_table(stored, now_s=time.time()))


@sessions.command("show", cls=PlainCommand)
def show_session(
    session_id: SessionId,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the conversation as JSON.")] = False,
    timeout: options.Timeout = options.TIMEOUT_S,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """Show the messages of a conversation."""
    with reporting_errors(), Client(address, timeout_s=timeout) as client:
        session = client.get_session(session_id)
    if as_json:
        print_json(session)
        return
    for message in session.messages:
        calls = ", ".join(f"{call.name}({call.arguments_json})" for call in message.tool_calls)
        say(f"{role_name(message.role)}: {'(removed)' if message.removed else message.content or calls}")


@sessions.command("delete", cls=PlainCommand)
def delete_session(
    session_id: SessionId,
    *,
    timeout: options.Timeout = options.TIMEOUT_S,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """Delete a conversation."""
    with reporting_errors(), Client(address, timeout_s=timeout) as client:
        client.delete_session(session_id)
    note(f"{session_id} deleted")
