"""The installed program `pagantic`. A shell that completes a line is answered without loading the commands."""

from __future__ import annotations

import os

COMPLETING = "_PAGANTIC_COMPLETE"


def main() -> None:
    """Answer the shell that asks for completions; else run the command of the line."""
    if COMPLETING in os.environ and _complete():
        return
    from gateway.cli.main import main as run  # noqa: PLC0415 - the commands take most of the time of a start

    run()


def _complete() -> bool:
    from gateway.completion.program import answer  # noqa: PLC0415 - other starts need none of it

    return answer(os.environ, COMPLETING)
