"""Options that several commands share, and the texts and files that arguments name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.output import UsageError
from pagantic_common.client import Hints

Address = Annotated[str, typer.Option(envvar="PAGANTIC_ADDRESS", help="host:port of the orchestrator")]
Timeout = Annotated[float, typer.Option(min=0.001, help="longest time for the request, seconds")]
AsJson = Annotated[bool, typer.Option("--json", help="print the whole answer as JSON")]
System = Annotated[str, typer.Option(help="system prompt")]
MaxTokens = Annotated[int, typer.Option(min=0, help="most output tokens; 0 is the system's default")]
Temperature = Annotated[float | None, typer.Option(min=0, max=2, help="0 always takes the likeliest token")]
Seed = Annotated[int | None, typer.Option(min=0, help="start of the random stream")]

DEFAULT_ADDRESS = "127.0.0.1:50051"
DEFAULT_TIMEOUT_S = 120.0


def hints_of(max_tokens: int, temperature: float | None, seed: int | None) -> Hints:
    """Return hints with what was given."""
    hints: Hints = {"max_tokens": max_tokens}
    if temperature is not None:
        hints["temperature"] = temperature
    if seed is not None:
        hints["seed"] = seed
    return hints


def read_text(argument: str) -> str:
    """Return the argument, stdin for `-`, or the file that `@file` names; raises UsageError."""
    if argument == "-":
        text = sys.stdin.read()
    elif argument.startswith("@"):
        text = read_file(Path(argument[1:]))
    else:
        text = argument
    if not text.strip():
        raise UsageError("the text is empty")
    return text


def read_file(path: Path) -> str:
    """Return a file's text; raises UsageError."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise UsageError(f"cannot read {str(path)!r}: it is not UTF-8 text") from None
