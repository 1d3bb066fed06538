"""How the command talks: answers on stdout, everything else on stderr, failures as one line and a next step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from google.protobuf import json_format
from google.protobuf.message import Message

from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import raise_for_error
from pagantic_common.domain import errors
from pagantic_common.domain.errors import ErrorCategory, ErrorCode, PaganticError
from pagantic_common.rpc.status import status_code_of

EXIT_FAILED = 1
EXIT_USAGE = 2


class UsageError(Exception):
    """What was typed or the file that it names cannot be used; the message says why."""


def note(text: str) -> None:
    """Write a line that is not the answer; dim on a terminal, plain elsewhere."""
    typer.secho(text, err=True, dim=True)


def print_json(message: Message, *, one_line: bool = False) -> None:
    """Print a message as proto JSON with the field names of the protos."""
    typer.echo(json_format.MessageToJson(message, preserving_proto_field_name=True, indent=None if one_line else 2))


def check_response(response: execution_pb2.SystemResponse) -> None:
    """Report the response's error, when it has one, and end with 1."""
    try:
        raise_for_error(response)
    except PaganticError as error:
        report(error, request_id=response.request_id)
        raise typer.Exit(EXIT_FAILED) from None


def report(error: PaganticError, *, request_id: str = "") -> None:
    """Write `CODE: message` and what to do next to stderr."""
    # A deadline that passed here and one that passed there have the same code; other statuses have only their name.
    code = error.code.value if error.code else status_code_of(error).name
    typer.secho(f"{code}: {_one_line(str(error))}", err=True, fg=typer.colors.RED)
    typer.echo(f"next: {_next_step(error, request_id)}", err=True)


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Turn failures inside into one line on stderr and an exit code: 1 for failures, 2 for wrong usage."""
    try:
        yield
    except PaganticError as error:
        report(error)
        raise typer.Exit(EXIT_FAILED) from None
    except UsageError as error:
        typer.secho(f"USAGE: {error}", err=True, fg=typer.colors.RED)
        raise typer.Exit(EXIT_USAGE) from None


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _next_step(error: PaganticError, request_id: str) -> str:  # noqa: PLR0911 - an answer for each kind
    if isinstance(error, errors.Unavailable) and not request_id:
        return "start the services with `pagantic up`, or name another address with --address; then send it again"
    if error.code is ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE:
        return "see which service is down with `pagantic status`"
    if isinstance(error, errors.DeadlineExceeded):
        return "allow more time with --timeout, or less output with --max-tokens"
    if isinstance(error, errors.Overloaded):
        wait = f" in {error.retry_after_s:.0f} s" if error.retry_after_s else " later"
        return f"try again{wait}"
    if error.failure.category is ErrorCategory.CONFIGURATION_FAILURE:
        return "change what the message names and try again"
    if request_id:
        again = "try again, or " if error.failure.retryable else ""
        return f"{again}see what happened with `pagantic timeline {request_id}`"
    if isinstance(error, errors.Internal):
        return "look into the service's log: `pagantic status` names the folder"
    return "change the request; `--help` tells what the command takes"
