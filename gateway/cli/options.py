"""Options that several commands share, and functions that read the texts and files of their arguments."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.completion import names_of, words
from gateway.cli.output import UsageError, note
from pagantic.common.v1 import message_pb2
from pagantic_common.client import Options, user_message
from pagantic_common.client.hints import REASONING_MODES
from pagantic_common.domain.defaults import MAX_MESSAGE_BYTES, REQUEST_TIMEOUT_S, local_address
from pagantic_common.domain.ids import is_id
from pagantic_common.domain.text.json_text import JsonTextError, parse_json

ORCHESTRATOR = local_address("orchestrator")
INFERENCE = local_address("inference")
CONTEXT = local_address("context")
TIMEOUT_S = REQUEST_TIMEOUT_S
LONG_TEXT = "`pagantic ingest` takes long texts"

Address = Annotated[
    str, typer.Option(metavar="HOST:PORT", envvar="PAGANTIC_ADDRESS", help="Address of the orchestrator.")
]
Timeout = Annotated[
    float, typer.Option(metavar="SECONDS", min=0.001, help="Longest time for the request.", show_default=True)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the whole response as JSON.")]
Words = Annotated[
    str | None, typer.Argument(metavar="TEXT", help="The text; @FILE reads a file, and - or a pipe stdin.")
]
Schema = Annotated[Path, typer.Option(metavar="FILE", help="File with the JSON Schema of the answer.")]
RequestId = Annotated[
    str, typer.Option(metavar="ID", help="Id of the request, to send it again or look it up; else one is made.")
]
Keep = Annotated[bool, typer.Option("--keep", help="Keep the request and its steps, for `pagantic replay`.")]
StoredId = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the request.", autocompletion=names_of("executions"))
]
System = Annotated[str, typer.Option(metavar="TEXT", help="System prompt.")]
Model = Annotated[
    str,
    typer.Option(metavar="NAME", help="Model to use; `pagantic models` lists them.", autocompletion=names_of("models")),
]
Context = Annotated[
    str,
    typer.Option(
        metavar="COLLECTION", help="Collection of documents to retrieve from.", autocompletion=names_of("collections")
    ),
]
Image = Annotated[
    list[Path] | None,
    typer.Option("--image", metavar="FILE", help="PNG, JPEG, WebP or GIF before the text; repeatable."),
]
Stop = Annotated[list[str] | None, typer.Option(metavar="TEXT", help="End the answer before this text; repeatable.")]
Reasoning = Annotated[
    str,
    typer.Option(
        metavar="MODE", help="Let the model reason first: auto, on or off.", autocompletion=words(REASONING_MODES)
    ),
]
Tool = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Tool that the model may call; repeatable.", autocompletion=names_of("tools")),
]
MaxTokens = Annotated[
    int, typer.Option(metavar="N", min=0, help="Most output tokens; 0 is the system's default.", show_default=False)
]
Temperature = Annotated[
    float | None, typer.Option(metavar="X", min=0, max=2, help="Randomness, 0 to 2; 0 takes the likeliest token.")
]
Seed = Annotated[int | None, typer.Option(metavar="N", min=0, help="Start of the random stream.")]


def request_id_of(given: str) -> str:
    """Return the given id, or a new id if none is given. Raises UsageError if the given id is invalid."""
    if given and not is_id(given):
        raise UsageError(f"--request-id {given[:140]!r}: use letters, digits and . _ : - only, at most 128")
    return given or uuid.uuid4().hex[:16]


def options_of(
    request_id: str,
    max_tokens: int,
    temperature: float | None,
    seed: int | None,
    *,
    model: str = "",
    context: str = "",
    stop: list[str] | None = None,
    reasoning: str = "",
    keep: bool = False,
) -> Options:
    """Return the options of a request. Raises UsageError if an option is invalid."""
    options: Options = {"request_id": request_id, "max_tokens": max_tokens, "model": model, "context": context}
    if temperature is not None:
        options["temperature"] = temperature
    if seed is not None:
        options["seed"] = seed
    if keep:
        options["keep_request"] = True
    if stop:
        options["stop"] = stop
    if reasoning:
        if reasoning not in REASONING_MODES:
            raise UsageError(f"--reasoning {reasoning!r}: use one of {', '.join(REASONING_MODES)}")
        options["reasoning"] = reasoning
    return options


def read_text(argument: str | None) -> str:
    """Return the argument, the content of the file for `@file`, or stdin for `-` or None.

    Raises UsageError if the text cannot be read or is empty.
    """
    if argument is None:
        text = read_pipe("the text")
    elif argument == "-":
        text = read_stdin()
    elif argument.startswith("@"):
        text = read_file(Path(argument[1:]))
    else:
        text = argument
    if not text.strip():
        raise UsageError("the text is empty")
    return text


def read_pipe(what: str, *, max_bytes: int = MAX_MESSAGE_BYTES, hint: str = LONG_TEXT) -> str:
    """Return stdin if it is not a terminal. Raises a UsageError that names the missing input if there is no text."""
    text = ""
    if sys.stdin is not None and not sys.stdin.isatty():
        text = read_stdin(max_bytes=max_bytes, hint=hint)
    if not text.strip():
        raise UsageError(f"{what} is missing: give it as an argument, or through a pipe; --help shows how")
    return text


def read_stdin(*, max_bytes: int = MAX_MESSAGE_BYTES, hint: str = LONG_TEXT) -> str:
    """Return stdin up to its end, which is Ctrl-D on a terminal.

    `hint` is the remedy to suggest if stdin exceeds `max_bytes`. Raises UsageError if stdin cannot be read.
    """
    if sys.stdin is None:
        raise UsageError("stdin is closed")
    if sys.stdin.isatty():
        note("reading from the terminal; Ctrl-D in an empty line ends the text")
    read = sys.stdin.buffer.read(max_bytes + 1)
    if len(read) > max_bytes:
        raise UsageError(f"stdin has more than {max_bytes} bytes: {hint}")
    try:
        return read.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError("stdin is not UTF-8 text") from None


def with_images(text: str, images: list[Path] | None) -> str | list[message_pb2.Message]:
    """Return the text, or a message with the images before the text. Raises UsageError if an image is unusable."""
    if not images:
        return text
    try:
        return [user_message(*images, text)]
    except OSError as error:
        raise UsageError(f"--image {error.filename!r} cannot be read: {(error.strerror or '').lower()}") from None
    except ValueError as error:
        raise UsageError(f"--image {error}") from None


def read_file(path: Path) -> str:
    """Return a file's text. Raises UsageError if the file cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise UsageError(f"cannot read {str(path)!r}: it is not UTF-8 text") from None


def read_schema(path: Path) -> str:
    """Return the JSON text of a file. Raises UsageError if the file cannot be read or is not JSON."""
    text = read_file(path)
    try:
        parse_json(text)
    except JsonTextError as error:
        raise UsageError(f"the schema {str(path)!r} is not JSON: {error}") from None
    return text
