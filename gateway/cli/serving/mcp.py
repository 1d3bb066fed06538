"""The command that serves clients of the Model Context Protocol. It loads its packages only when it runs."""

from __future__ import annotations

import importlib.util
from typing import Annotated

import typer

from gateway.cli import options
from gateway.cli.failures import EXIT_USAGE
from gateway.cli.output import note, reporting_errors


def mcp(
    *,
    http: Annotated[bool, typer.Option("--http", help="Serve over HTTP instead of stdin and stdout.")] = False,
    port: Annotated[
        int | None, typer.Option(metavar="N", min=0, max=65535, help="Port for --http; else PAGANTIC_MCP_PORT, 8090.")
    ] = None,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """Serve tools, collections and prompts to MCP clients."""
    if importlib.util.find_spec("mcp") is None:
        typer.echo("this installation lacks the protocol: `pip install 'pagantic[mcp]'` brings it", err=True)
        raise typer.Exit(EXIT_USAGE)
    from gateway.mcp import program

    with reporting_errors():
        if not http:
            program.run_stdio(address)
            return
        program.run_http(address, port, lambda url: note(f"serving {url}; Ctrl-C ends it"))
