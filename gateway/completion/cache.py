"""Keeps the description of the commands in the user's cache: to describe them, all of them must be loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from gateway.completion.words import Command
from pagantic_common.domain.defaults import cache_folder

_GATEWAY = Path(__file__).parents[1]
_ROOMS = (
    "gateway/cli",
    "gateway/completion",
    "pagantic_common/client",
    "pagantic_common/domain",
    "pagantic_common/models",
)
_SOURCES = (".py", ".json")


def read_commands(environment: Mapping[str, str]) -> Command:
    """Return the description of the commands, from the cache where it is of these commands."""
    file = cache_folder(environment) / "commands.json"
    version = _version()
    kept = _kept(file, version)
    if kept is not None:
        return kept
    from gateway.completion.tree import describe_commands  # noqa: PLC0415 - it loads all commands

    commands = describe_commands()
    _write(file, json.dumps({"version": version, "commands": commands}))
    return commands


def _kept(file: Path, version: str) -> Command | None:
    """Return the commands of a file; None if it is not there, cannot be read, or is of another version."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        commands: Command | None = kept["commands"] if kept["version"] == version else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return commands


def _version() -> str:
    """Return what changes with the files of the commands and of the words that they take."""
    protocol = find_spec("pagantic")
    protocols = (protocol and protocol.submodule_search_locations) or ()
    rooms = [*(_GATEWAY.parent / room for room in _ROOMS), *(Path(place, "orchestrator") for place in protocols)]
    files = [file for room in rooms for file in room.rglob("*") if file.suffix in _SOURCES]
    newest_ns = max((file.stat().st_mtime_ns for file in files), default=0)
    return f"{_GATEWAY} {len(files)} {newest_ns}"


def _write(file: Path, text: str) -> None:
    """Write a file whole or not at all; a cache that cannot be written costs time alone."""
    from pagantic_common.storage.whole_file import write_whole  # noqa: PLC0415 - most completions write nothing

    with suppress(OSError):
        write_whole(file, text)
