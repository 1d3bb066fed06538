"""Commands that run the services of this machine; the supervisor is another program, started as one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Annotated, Any

import psutil
import typer

from pagantic_common.settings import state_folder

MODULE = "deploy.local"
_ANY_HOST = ("0.0.0.0", "::", "[::]")  # noqa: S104 - compared with, not bound


def up() -> None:
    """Start every service and wait until all are ready."""
    raise typer.Exit(_run("up"))


def down() -> None:
    """Stop every service."""
    raise typer.Exit(_run("down"))


def status(*, as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """Show the state of each service; exit code 1 when one is not ready."""
    raise typer.Exit(_run("status", *(["--json"] if as_json else [])))


def use_remembered_addresses() -> None:
    """Let commands find what was started from this user's state folder, unless the environment says where to look."""
    try:
        running = json.loads((state_folder() / "running.json").read_text(encoding="utf-8"))
        areas = {area["name"]: area for area in running["areas"]}
        is_alive = psutil.pid_exists(running["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    for name, area in areas.items() if is_alive else ():
        host = area["host"] if area["host"] not in _ANY_HOST else "127.0.0.1"
        variable = "PAGANTIC_ADDRESS" if name == "orchestrator" else f"PAGANTIC_{name.upper()}_ADDRESS"
        os.environ.setdefault(variable, f"{host}:{area['port']}")


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
