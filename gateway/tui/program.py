"""Opens the terminal program if there is a terminal."""

from __future__ import annotations

import os
import sys

import typer

from gateway.cli.output import reporting_errors
from gateway.cli.running import use_remembered_addresses
from gateway.cli.serving.configured import check_settings, use_settings
from gateway.tui.app import TerminalApp
from pagantic_common.client import AsyncClient


def main() -> None:
    """Run the program until the user quits, and exit with its code."""
    check_settings(use_settings(), None)
    use_remembered_addresses(os.environ)
    # Otherwise, messages from gRPC's core would overwrite the screen.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        with reporting_errors():
            client = AsyncClient(patience_s=0)
    except typer.Exit as ended:
        sys.exit(ended.exit_code)
    app = TerminalApp(client)
    app.run()
    sys.exit(app.return_code or 0)
