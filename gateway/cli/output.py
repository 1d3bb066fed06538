"""Output of the commands: answers on stdout, everything else on stderr, and each failure on one line with a next step.

This module removes the terminal control sequences of models and documents.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import typer

from gateway.cli.failures import EXIT_INTERRUPTED, EXIT_REQUEST, EXIT_USAGE, exit_code_of, next_step_of
from pagantic_common.domain.errors import PaganticError
from pagantic_common.domain.text.terminal import plain_json, plain_text

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from rich.console import RenderableType
    from rich.status import Status

    from pagantic.orchestrator.v1 import execution_pb2


class UsageError(Exception):
    """Raised for an invalid argument or file. The message states the reason."""


def say(text: str, *, nl: bool = True) -> None:
    """Write a part of the answer to stdout."""
    typer.echo(plain_text(text), nl=nl)


def say_json(text: str) -> None:
    """Write JSON that a model generated."""
    typer.echo(plain_json(text))


def say_wrapped(text: str, *, indent: int = 0, first: str = "") -> None:
    """Write a line, wrapped between words on a terminal. A styled `first` replaces the indent of the first line."""
    skip = 0
    if first:
        skip = indent
    lines = _wrapped(plain_text(text), sys.stdout.isatty(), indent, skip=skip)
    typer.echo(first + "\n".join(lines))


def note(text: str) -> None:
    """Write a line to stderr, dim and wrapped on a terminal and plain elsewhere."""
    for line in plain_text(text).split("\n"):
        typer.secho("\n".join(_wrapped(line, sys.stderr.isatty())), err=True, dim=True)


def show(table: RenderableType) -> None:
    """Print a table."""
    from pagantic_common.client.tables import wide_console

    wide_console().print(table)


def print_json(message: Message, *, one_line: bool = False) -> None:
    """Print a message as proto JSON with the field names of the protos."""
    from google.protobuf import json_format

    indent: int | None = 2
    if one_line:
        indent = None
    typer.echo(plain_json(json_format.MessageToJson(message, preserving_proto_field_name=True, indent=indent)))


def check_response(response: execution_pb2.SystemResponse) -> None:
    """Report the response's error, if any, and exit with the code of that error."""
    from pagantic_common.client import raise_for_error

    try:
        raise_for_error(response)
    except PaganticError as error:
        report(error, request_id=response.request_id)
        raise typer.Exit(exit_code_of(error)) from None


def report(error: PaganticError, *, request_id: str = "") -> None:
    """Write `CODE: message`, the request's id and the user's next step to stderr."""
    code = _code_of(error)
    typer.secho(f"{code}: {_one_line(plain_text(str(error)))}", err=True, fg=typer.colors.RED)
    if request_id:
        typer.echo(f"request: {plain_text(request_id)}", err=True)
    typer.echo(f"next: {next_step_of(error, request_id)}", err=True)


def _code_of(error: PaganticError) -> str:
    """Return the error's own code, or the status of its class if it has no code."""
    if error.code is not None:
        return error.code.value
    from pagantic_common.rpc.status import status_code_of

    return str(status_code_of(error).name)


def refuse(problems: Iterable[str]) -> NoReturn:
    """Print a line for each invalid setting and end the program."""
    for line in problems:
        typer.secho(f"configuration error: {plain_text(line)}", err=True, fg=typer.colors.RED)
    sys.exit(EXIT_REQUEST)


@contextmanager
def reporting_errors(request_id: str = "") -> Iterator[None]:
    """Report failures inside the block on stderr, and exit with the code of the failure."""
    try:
        yield
    except PaganticError as error:
        report(error, request_id=request_id)
        raise typer.Exit(exit_code_of(error)) from None
    except KeyboardInterrupt:
        if request_id:
            note(f"\nstopped; `pagantic show {request_id}` shows the answer so far")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except UsageError as error:
        typer.secho(f"USAGE: {plain_text(str(error))}", err=True, fg=typer.colors.RED)
        raise typer.Exit(EXIT_USAGE) from None


@contextmanager
def showing_progress() -> Iterator[Progress]:
    """Show progress on a terminal, and show nothing elsewhere."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    with console.status("") as status:
        if console.is_terminal:
            yield Progress(status)
        else:
            yield Progress(None)


class Progress:
    """A status line that shows the current work, the elapsed time and the number of characters written."""

    def __init__(self, status: Status | None) -> None:
        self._status = status
        self._started_s = time.monotonic()
        self._characters = 0
        self.show("starting")

    def show(self, what: str, text: str = "") -> None:
        """Show the current work, and count the characters of the new text."""
        self._characters += len(text)
        waited_s = time.monotonic() - self._started_s
        if self._status is not None:
            words = f"{plain_text(what)} … {waited_s:.0f} s"
            if self._characters:
                words += f", {self._characters} characters"
            from rich.text import Text

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
    if not lines:
        return [""]
    return [lines[0][skip:], *lines[1:]]
