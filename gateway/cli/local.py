"""Commands that run the services of this machine; the supervisor is another program, started as one."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Annotated, Any

import typer

MODULE = "deploy.local"


def up() -> None:
    """Start every service and wait until all serve."""
    raise typer.Exit(_run("up"))


def down() -> None:
    """Stop every service."""
    raise typer.Exit(_run("down"))


def status(*, as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """Tell how each service is; exit code 1 when one does not serve."""
    raise typer.Exit(_run("status", *(["--json"] if as_json else [])))


def read_status() -> list[dict[str, Any]]:
    """Return what `status --json` tells; empty when it cannot tell."""
    command = [sys.executable, "-m", MODULE, "status", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)
    except json.JSONDecodeError:
        return []
    return found


def _run(*arguments: str) -> int:
    # Ctrl-C reaches the started command too; it stops what it started, so it is waited for and not killed.
    running = subprocess.Popen([sys.executable, "-m", MODULE, *arguments])
    while True:
        try:
            return running.wait()
        except KeyboardInterrupt:
            continue
