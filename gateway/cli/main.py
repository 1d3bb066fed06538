"""The `pagantic` command: handles global options, applies the settings, and reports unexpected errors."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from gateway.cli.failures import EXIT_CODES_HELP, EXIT_FAILED
from gateway.cli.running import use_remembered_addresses
from gateway.cli.serving import configured
from gateway.cli.tree import CommandTree
from pagantic_common.domain.text.terminal import plain_text

_HELP = {"-h", "--help"}
app = typer.Typer(
    name="pagantic",
    cls=CommandTree,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": sorted(_HELP)},
)


def _print_version(value: bool) -> None:
    if value:
        import importlib.metadata

        typer.echo(f"pagantic {importlib.metadata.version('pagantic')}")
        raise typer.Exit


@app.callback(
    help="Language-model work as dependable services. Alone on a terminal, `pagantic` opens the terminal program.",
    epilog=EXIT_CODES_HELP,
)
def _describe(
    context: typer.Context,
    *,
    version: Annotated[  # noqa: ARG001 - its callback has printed it
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Handle the options before a command. An invalid settings file keeps the command from running."""
    configured.check_settings(context.obj or "", context.invoked_subcommand)


def _reason_of(error: OSError) -> str:
    """Return the operating system's reason and the file's name, or another error's text unchanged."""
    if error.strerror is None:
        return str(error) or type(error).__name__
    reason = error.strerror[:1].lower() + error.strerror[1:]
    if error.filename is None:
        return reason
    return f"{reason}: {error.filename!r}"


def main() -> None:
    """Run the `pagantic` command."""
    try:
        problems = configured.use_settings()
        use_remembered_addresses(os.environ)
        app(obj="" if _HELP.intersection(sys.argv) else problems)
    except OSError as error:  # For example, the disk behind stdout is full. Commands report specific errors themselves.
        typer.echo(f"FAILED: {plain_text(_reason_of(error))}", err=True)
        sys.exit(EXIT_FAILED)
    except Exception as error:  # noqa: BLE001 - people get a line, not a traceback
        typer.echo(f"INTERNAL: {type(error).__name__}: {plain_text(str(error))}", err=True)
        typer.echo("next: this is a fault of the command itself; please report it", err=True)
        sys.exit(EXIT_FAILED)


if __name__ == "__main__":
    main()
