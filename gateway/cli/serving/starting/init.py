"""`pagantic init`: asks for the settings of a system, and writes the settings file."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.completion import PULLED, names_of
from gateway.cli.models.pulling import pull as pull_model
from gateway.cli.output import UsageError, note, reporting_errors, say
from gateway.cli.serving.doctor import check_engine
from gateway.cli.serving.starting import choices
from gateway.cli.serving.starting.asking import Asker, Given, choose, client_settings
from gateway.cli.serving.starting.choices import Choices
from pagantic_common.domain.calls.api_keys import make_key
from pagantic_common.models.resolving import NO_MODEL
from pagantic_common.storage.installed import CLIENT_ALONE, has_services
from pagantic_common.storage.settings_file import FILE_NAME, origin_of, user_file
from pagantic_common.storage.whole_file import write_whole

OTHER_ENGINES = (
    "add PAGANTIC_INFERENCE_REMOTES and PAGANTIC_INFERENCE_DEFAULT_MODEL to the file, as the page engines.md of the "
    "documentation shows"
)


def init(
    *,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Model: a name of the catalog, a GGUF file, bundled, or none.",
            autocompletion=names_of(PULLED),
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Folder of journals, collections and logs.")
    ] = None,
    http: Annotated[
        bool | None, typer.Option("--http/--no-http", help="Have `pagantic up` start the console and HTTP APIs too.")
    ] = None,
    key: Annotated[bool | None, typer.Option("--key/--no-key", help="Let in callers with an API key alone.")] = None,
    first_port: Annotated[
        int | None, typer.Option(metavar="N", help="Port of the orchestrator; the other services' ports follow it.")
    ] = None,
    http_port: Annotated[int | None, typer.Option(metavar="N", min=1, max=65535, help="Port for HTTP.")] = None,
    pull: Annotated[bool | None, typer.Option("--pull/--no-pull", help="Pull the model if it is not here.")] = None,
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Call a system that runs elsewhere; no services here.")
    ] = None,
    key_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="With --address: file of the API key for that system.")
    ] = None,
    user: Annotated[
        bool, typer.Option("--user", help="Write the user's settings file, which counts in every folder.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a settings file that is there.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing: take the defaults.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the file and its settings as JSON; ask nothing.")
    ] = False,
) -> None:
    """Write a settings file, pagantic.env, which every command finds.

    On a terminal, the command asks for the values that no option sets. In a pipe, it uses the defaults.
    """
    with reporting_errors():
        path = user_file(os.environ) if user else Path.cwd() / FILE_NAME
        if path.exists() and not force:
            raise UsageError(f"{path} is there: --force replaces it, and `pagantic doctor` checks it")
        asker = Asker(is_asking=not (yes or as_json) and sys.stdin is not None and sys.stdin.isatty())
        preset = Given(model, data, http, key, first_port, http_port)
        settings, chosen = _settings_of(asker, preset, address, key_file)
        overridden = _overridden(settings)
        if chosen is not None:
            _make_state(chosen)
        _write(path, choices.text_of(settings))
    if as_json:
        say(json.dumps({"file": str(path), "settings": settings}, indent=2))
        return
    say(f"wrote {path}")
    _note_precedence(path, overridden)
    if chosen is None:
        say('next: pagantic chat "What is a lighthouse for?"')
    else:
        _pull(asker, chosen.model, pull)
        _say_next(chosen)


def _settings_of(
    asker: Asker, given: Given, address: str | None, key_file: str | None
) -> tuple[dict[str, str], Choices | None]:
    """Return the settings, and the choices if services are to run on this machine.

    Raises UsageError if the options contradict each other.
    """
    if address is None and has_services():
        if key_file is not None:
            raise UsageError("--key-file belongs to --address; --key makes a key for the system of this machine")
        chosen = choose(asker, given)
        return chosen.settings(), chosen
    if names := ", ".join(given.names()):
        if has_services():
            raise UsageError(f"{names}: with --address no services of this machine are set up")
        raise UsageError(f"{names}: {CLIENT_ALONE}; --address names a system that runs elsewhere")
    return client_settings(asker, address, key_file), None


def _make_state(chosen: Choices) -> None:
    """Create the state folder and, if an operator's key is wanted but missing, create the key file."""
    path = chosen.data
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if chosen.key_file is not None:
            path = chosen.key_file
            path.parent.mkdir(exist_ok=True, mode=0o700)
            with suppress(FileExistsError), os.fdopen(_open_new(path), "w") as file:
                file.write(make_key(os.urandom).text + "\n")
    except OSError as error:
        raise UsageError(f"cannot write {str(path)!r}: {(error.strerror or str(error)).lower()}") from None


def _open_new(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)


def _write(path: Path, text: str) -> None:
    """Write the file atomically and so that only this user can read it."""
    try:
        write_whole(path, text)
    except OSError as error:
        raise UsageError(f"cannot write {str(path)!r}: {(error.strerror or str(error)).lower()}") from None


def _overridden(settings: dict[str, str]) -> list[str]:
    """Return the variables that the shell sets to a different value, ignoring values from the old file."""
    return [name for name, value in settings.items() if os.environ.get(name, value) != value and not origin_of(name)]


def _note_precedence(path: Path, overridden: list[str]) -> None:
    """Report the settings that take precedence over the written file."""
    if path != Path.cwd() / FILE_NAME and (Path.cwd() / FILE_NAME).exists():
        note(f"in this folder {FILE_NAME} comes before it")
    for name in overridden:
        note(f"{name} of this shell has another value, which wins over the file: unset it")


def _pull(asker: Asker, model: str, pull: bool | None) -> None:
    if not choices.is_to_pull(model):
        return
    if pull is None:
        pull = asker.confirm(f"Pull {model} now?", default=True) if asker.is_asking else False
    if pull:
        pull_model(model)
    else:
        say(f"next: pagantic pull {model}")


def _say_next(chosen: Choices) -> None:
    if chosen.model == NO_MODEL:
        say(f"next: {OTHER_ENGINES}")
    elif step := check_engine().next_step:
        say(f"next: {step}")
    say("next: pagantic up")
    if chosen.http_port:
        say(f"then: http://127.0.0.1:{chosen.http_port}/ in a browser, or pagantic chat")
    else:
        say("then: pagantic chat")
