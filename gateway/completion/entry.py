"""The installed program `pagantic`. A shell that completes a line is answered without loading the commands."""

from __future__ import annotations

import importlib.util
import os
import sys

COMPLETING = "_PAGANTIC_COMPLETE"


EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the program. Ctrl-C ends it without a traceback at any time, also while its commands are loaded."""
    try:
        _start()
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        sys.exit(EXIT_INTERRUPTED)


def _start() -> None:
    """Answer the shell that asks for completions; else open the terminal program, or run the command of the line."""
    if COMPLETING in os.environ and _complete():
        return
    if len(sys.argv) == 1 and _is_terminal():
        if importlib.util.find_spec("textual") is not None:
            from gateway.tui.program import main as open_program  # noqa: PLC0415 - commands need none of it

            open_program()
            return
        sys.stderr.write("the terminal program needs the package textual: `pip install textual` brings it\n\n")
    from gateway.cli.main import main as run  # noqa: PLC0415 - the commands take most of the time of a start

    run()


def _is_terminal() -> bool:
    """Tell whether there is a whole terminal: keys come from stdin, and the screen is drawn on stderr."""
    if os.environ.get("TERM", "") in ("", "dumb"):
        return False
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def _complete() -> bool:
    from gateway.completion.program import answer  # noqa: PLC0415 - other starts need none of it

    return answer(os.environ, COMPLETING)
