"""How the command talks: answers on stdout, everything else on stderr, failures as one line and a next step.

Nothing reaches a terminal from here with control sequences in it.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from google.protobuf import json_format
from google.protobuf.message import Message
from rich.console import Console, RenderableType
from rich.status import Status
from rich.text import Text

from gateway.cli.failures import EXIT_INTERRUPTED, EXIT_USAGE, exit_code_of, next_step_of
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import raise_for_error
from pagantic_common.client.tables import wide_console
from pagantic_common.domain.errors import PaganticError
from pagantic_common.domain.text.terminal import plain_json, plain_text
from pagantic_common.rpc.status import status_code_of


class UsageError(Exception):
    """What was typed or the file that it names cannot be used; the message says why."""


def say(text: str, *, nl: bool = True) -> None:
    """Write a part of the answer."""
    typer.echo(plain_text(text), nl=nl)


def say_json(text: str) -> None:
    """Write JSON that a model made."""
    typer.echo(plain_json(text))


def say_wrapped(text: str, *, indent: int = 0, first: str = "") -> None:
    """Write a line, on a terminal wrapped between words; `first` is the styled text that it begins with."""
    lines = _wrapped(plain_text(text), sys.stdout.isatty(), indent, skip=indent if first else 0)
    typer.echo(first + "\n".join(lines))


def note(text: str) -> None:
    """Write a line that is not the answer; dim and wrapped on a terminal, plain elsewhere."""
    for line in plain_text(text).split("\n"):
        typer.secho("\n".join(_wrapped(line, sys.stderr.isatty())), err=True, dim=True)


def show(table: RenderableType) -> None:
    """Write a table."""
    wide_console().print(table)


def print_json(message: Message, *, one_line: bool = False) -> None:
    """Print a message as proto JSON with the field names of the protos."""
    text = json_format.MessageToJson(message, preserving_proto_field_name=True, indent=None if one_line else 2)
    typer.echo(plain_json(text))


def check_response(response: execution_pb2.SystemResponse) -> None:
    """Report the response's error, when it has one, and end with its exit code."""
    try:
        raise_for_error(response)
    except PaganticError as error:
        report(error, request_id=response.request_id)
        raise typer.Exit(exit_code_of(error)) from None


def report(error: PaganticError, *, request_id: str = "") -> None:
    """Write `CODE: message`, the request's id and what to do next to stderr."""
    # A deadline that passed here and one that passed there have the same code; other statuses have only their name.
    code = error.code.value if error.code else status_code_of(error).name
    typer.secho(f"{code}: {_one_line(plain_text(str(error)))}", err=True, fg=typer.colors.RED)
    if request_id:
        typer.echo(f"request: {plain_text(request_id)}", err=True)
    typer.echo(f"next: {next_step_of(error, request_id)}", err=True)


@contextmanager
def reporting_errors(request_id: str = "") -> Iterator[None]:
    """Turn failures inside into lines on stderr and an exit code."""
    try:
        yield
    except PaganticError as error:
        report(error, request_id=request_id)
        raise typer.Exit(exit_code_of(error)) from None
    except KeyboardInterrupt:
        if request_id:
            note(f"\nstopped; `pagantic show {request_id}` shows what there is of the answer")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except UsageError as error:
        typer.secho(f"USAGE: {plain_text(str(error))}", err=True, fg=typer.colors.RED)
        raise typer.Exit(EXIT_USAGE) from None


@contextmanager
def showing_progress() -> Iterator[Progress]:
    """Show on a terminal that work is in progress; nothing elsewhere."""
    console = Console(stderr=True, highlight=False)
    with console.status("") as status:
        yield Progress(status if console.is_terminal else None)


class Progress:
    """A line with the work in progress, the time it has taken and how much has been written."""

    def __init__(self, status: Status | None) -> None:
        self._status = status
        self._started_s = time.monotonic()
        self._characters = 0
        self.tell("starting")

    def tell(self, what: str, text: str = "") -> None:
        """Show what is done now, and count text that came."""
        self._characters += len(text)
        waited_s = time.monotonic() - self._started_s
        if self._status is not None:
            words = f"{plain_text(what)} … {waited_s:.0f} s, {self._characters} characters"
            self._status.update(Text(words, style="dim"))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _wrapped(text: str, is_terminal: bool, indent: int = 0, skip: int = 0) -> list[str]:
    if not is_terminal:
        return [text]
    width = shutil.get_terminal_size().columns
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=" " * skip,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [lines[0][skip:], *lines[1:]] if lines else [""]
