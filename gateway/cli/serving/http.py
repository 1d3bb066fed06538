"""The command that serves clients of the OpenAI, Anthropic and Ollama APIs. It loads its packages only when it runs."""

from __future__ import annotations

import importlib.util
from typing import Annotated

import typer

from gateway.cli import options
from gateway.cli.failures import EXIT_USAGE
from gateway.cli.output import note, reporting_errors


def serve(
    *,
    port: Annotated[
        int | None, typer.Option(metavar="N", min=0, max=65535, help="Port; else PAGANTIC_HTTP_PORT, 8080.")
    ] = None,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """Serve OpenAI's API and others over HTTP."""
    if importlib.util.find_spec("starlette") is None or importlib.util.find_spec("uvicorn") is None:
        typer.echo("this installation lacks the HTTP server: `pip install 'pagantic[http]'` brings it", err=True)
        raise typer.Exit(EXIT_USAGE)
    from gateway.http import program

    with reporting_errors():
        program.run(address, port, _announce)


def _announce(url: str, console: str) -> None:
    note(f"serving {url}; Ctrl-C ends it")
    if console:
        note(f"the console is at {console}")
