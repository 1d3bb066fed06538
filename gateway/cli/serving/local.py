"""Commands that manage the services of this machine. They start the supervisor as a separate program."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.completion import words
from gateway.cli.failures import EXIT_USAGE
from gateway.cli.output import UsageError, reporting_errors, say
from pagantic_common.domain.defaults import PORTS, state_folder
from pagantic_common.run import command
from pagantic_common.storage.installed import CLIENT_ALONE, has_services

MODULE = "deploy.local"
TAIL_BYTES = 1024 * 1024
FOLLOW_S = 0.3


def up() -> None:
    """Start every service and wait until all are ready."""
    raise typer.Exit(_run("up"))


def down() -> None:
    """Stop every service."""
    raise typer.Exit(_run("down"))


def status(*, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show the state of each service.

    The exit code is 1 if any service is not serving.
    """
    if as_json:
        raise typer.Exit(_run("status", "--json"))
    raise typer.Exit(_run("status"))


def logs(
    service: Annotated[
        str,
        typer.Argument(
            metavar="SERVICE",
            help="orchestrator, inference, ...; without it, every service.",
            autocompletion=words(PORTS),
        ),
    ] = "",
    *,
    lines: Annotated[int, typer.Option(metavar="N", min=0, help="How many of its last lines are shown.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new lines until Ctrl-C.")] = False,
) -> None:
    """Show the logs of the services of this machine."""
    with reporting_errors():
        files = _find_logs(service)
        ends = {file: _show_tail(file, lines, is_named=len(files) > 1) for file in files}
        while follow:
            time.sleep(FOLLOW_S)
            ends = {file: _show_new(file, start, is_named=len(files) > 1) for file, start in ends.items()}


def _find_logs(service: str) -> list[Path]:
    """Return the logs of a service, or all logs if the name is empty. Raises UsageError if there are no logs."""
    files = sorted((state_folder(os.environ) / "logs").glob("*.log"))
    if service:
        names = ", ".join(file.stem for file in files) or "none"
        files = [file for file in files if file.stem == service]
        if not files:
            raise UsageError(f"no service of this machine logs as {service!r}; there are: {names}")
    if not files:
        raise UsageError(
            f"there are no logs in {state_folder(os.environ) / 'logs'}: nothing was started from this folder"
        )
    return files


def find_wrong_settings() -> list[str]:
    """Return a line for each unknown or invalid setting of the services."""
    printed = subprocess.run(command(MODULE, "check"), capture_output=True, text=True, check=False).stderr
    return [line.removeprefix("configuration error: ") for line in printed.splitlines()]


def read_status() -> list[dict[str, Any]]:
    """Return the output of `status --json`, or an empty list if the command fails."""
    done = subprocess.run(command(MODULE, "status", "--json"), capture_output=True, text=True, check=False)
    try:
        areas: list[dict[str, Any]] = json.loads(done.stdout)
    except json.JSONDecodeError:
        return []
    return areas


def _show_tail(file: Path, lines: int, *, is_named: bool) -> int:
    """Print the last lines of a log and return the size of the log."""
    size = file.stat().st_size
    with file.open("rb") as log:
        log.seek(max(0, size - TAIL_BYTES))
        tail = log.read(TAIL_BYTES)
    if lines:
        _show_lines(file, tail.splitlines()[-lines:], is_named=is_named)
    return size


def _show_new(file: Path, start: int, *, is_named: bool) -> int:
    """Print the complete lines after `start` and return the start of the next line.

    A rotated log is read from its start.
    """
    size = 0
    if file.is_file():
        size = file.stat().st_size
    if size == start:
        return start
    if size < start:
        start = 0
    with file.open("rb") as log:
        log.seek(start)
        new = log.read(TAIL_BYTES)
    whole = new[: new.rfind(b"\n") + 1]
    _show_lines(file, whole.splitlines(), is_named=is_named)
    return start + len(whole)


def _show_lines(file: Path, lines: Sequence[bytes], *, is_named: bool) -> None:
    for line in lines:
        text = line.decode(errors="replace")
        if is_named:
            text = f"{file.stem:<13} {text}"
        say(text)


def _run(*arguments: str) -> int:
    if not has_services():
        typer.echo(CLIENT_ALONE, err=True)
        return EXIT_USAGE
    # Ctrl-C also reaches the started command, which then stops its services. Wait for its end instead of killing it.
    running = subprocess.Popen(command(MODULE, *arguments))
    while True:
        try:
            return running.wait()
        except KeyboardInterrupt:
            continue
