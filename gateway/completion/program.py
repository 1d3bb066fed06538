"""Answers a shell that completes a line of `pagantic`. Prints nothing but completions, whatever happens."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from gateway.completion.bash import read_line, written_for_bash
from gateway.completion.cache import read_commands
from gateway.completion.names import find_names
from gateway.completion.words import Item, following

_COMPLETE = "complete_"


def answer(environment: Mapping[str, str], variable: str) -> bool:
    """Print what may follow the line that the environment holds; False for what is left to typer, as its scripts.

    The value of `variable` is what the shell asks, as typer's scripts set it.
    """
    instruction = environment[variable]
    shell = instruction.removeprefix(_COMPLETE)
    if instruction == shell or shell not in ("bash", "zsh", "fish"):
        return False
    _silence()
    _use_settings()
    if shell != "bash":
        return _answer_through_typer(environment, shell, variable)
    words, last = read_line(environment)
    print(written_for_bash(_items(environment, words, last), last))  # noqa: T201 - the shell reads it
    return True


def _answer_through_typer(environment: Mapping[str, str], shell: str, variable: str) -> bool:
    """Have typer read the line and write completions, as it knows both shells; False where it lacks these modules."""
    try:
        from typer._click.shell_completion import CompletionItem, get_completion_class  # noqa: PLC0415 - not for bash
        from typer._completion_classes import completion_init  # noqa: PLC0415 - as above
        from typer.core import TyperCommand  # noqa: PLC0415 - as above
    except ImportError:
        return False
    completion_init()
    kind = get_completion_class(shell)
    if kind is None:
        return False

    def complete(args: list[str], incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(word, help=text or None) for word, text in _items(environment, args, incomplete)]

    line = kind(TyperCommand("pagantic"), {}, "pagantic", variable)
    # The method of the class would load every command.
    line.get_completions = complete  # type: ignore[method-assign]
    print(line.complete())  # noqa: T201 - the shell reads it
    return True


def _items(environment: Mapping[str, str], words: Sequence[str], last: str) -> Sequence[Item]:
    found = following(read_commands(environment), words, last)
    begun = last.removeprefix(found.prefix)

    def fitting() -> Iterator[Item]:
        names = find_names(found.source) if found.source else []
        for word, text in (*found.items, *((name, "") for name in names)):
            if word.lower().startswith(begun.lower()):
                yield found.prefix + word, text

    return list(fitting())


def _use_settings() -> None:
    """Set the variables of the settings file: they say where the running system is, whose names are completed."""
    from pagantic_common.storage.settings_file import (  # noqa: PLC0415 - imported after messages are silenced
        SettingsFileError,
        use_settings_file,
    )

    with suppress(SettingsFileError):
        use_settings_file(os.environ)


def _silence() -> None:
    """Keep messages, such as those of libraries, out of the line that is typed."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
