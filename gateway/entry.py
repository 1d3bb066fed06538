"""The installed program `pagantic`: opens the terminal program, or runs the command on the command line."""

from __future__ import annotations

import importlib.util
import os
import sys

EXIT_INTERRUPTED = 130  # This must be the same value as in gateway.cli.failures, which is not imported yet.
NO_SCREEN = "the terminal program needs the package textual: `pip install 'pagantic[tui]'` brings it\n\n"


def main() -> None:
    """Run the program. Ctrl-C ends it without a traceback at any time, even while modules are being imported."""
    try:
        _start()
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        sys.exit(EXIT_INTERRUPTED)


def _start() -> None:
    if len(sys.argv) == 1 and _is_terminal():
        if importlib.util.find_spec("textual") is not None:
            from gateway.tui.program import main as open_program  # noqa: PLC0415 - the commands need none of it

            open_program()
            return
        sys.stderr.write(NO_SCREEN)
    from gateway.cli.main import main as run  # noqa: PLC0415 - within reach of the handling of Ctrl-C

    run()


def _is_terminal() -> bool:
    """Return whether all standard streams are a capable terminal. Keys come from stdin; stderr shows the screen."""
    if "_PAGANTIC_COMPLETE" in os.environ or os.environ.get("TERM", "") in ("", "dumb"):
        return False
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
