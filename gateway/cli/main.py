"""The `pagantic` command: its sub-commands and the last net below them."""

from __future__ import annotations

import sys

import typer

from gateway.cli import doctor, inner, local, requests, tuning
from gateway.cli.output import EXIT_FAILED

app = typer.Typer(
    name="pagantic",
    help="Language-model work as dependable services.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (
    local.up,
    local.down,
    local.status,
    requests.chat,
    requests.run,
    requests.structured,
    requests.timeline,
    requests.resume,
    requests.usage,
    inner.ingest,
    inner.tools,
    doctor.doctor,
    tuning.tune,
):
    app.command()(_command)


def main() -> None:
    """Entry point of `pagantic`."""
    try:
        local.use_remembered_addresses()
        app()
    except Exception as error:  # noqa: BLE001 - people get a line, not a traceback
        typer.echo(f"INTERNAL: {type(error).__name__}: {error}", err=True)
        typer.echo("next: this is a fault of the command itself; please report it", err=True)
        sys.exit(EXIT_FAILED)


if __name__ == "__main__":
    main()
