"""Finds and reads the settings file: variables as in the environment, one a line. The environment wins over it.

Completions of a command line load this module, so it imports little.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Final

from dotenv.parser import Binding, parse_stream

from pagantic_common.domain.defaults import config_folder

FILE_NAME: Final = "pagantic.env"
VARIABLE: Final = "PAGANTIC_SETTINGS_FILE"
NO_FILE: Final = "none"
MAX_BYTES: Final = 1024 * 1024
_OURS = "PAGANTIC"
_LIKENESS = 0.7
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class SettingsFileError(Exception):
    """The settings file cannot be read, or a line of it is wrong; the message names the file and the line."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A line of a settings file."""

    name: str
    value: str
    line: int


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A settings file that was read."""

    path: Path
    settings: tuple[Setting, ...]

    def line_of(self, name: str, value: str) -> int:
        """Return the line that gives this value to a variable; 0 when none does."""
        lines = (one.line for one in self.settings if (one.name.upper(), one.value) == (name.upper(), value))
        return next(lines, 0)


def use_settings_file(environment: MutableMapping[str, str]) -> SettingsFile | None:
    """Set the variables of the settings file that are not set yet; None without a file. Raises SettingsFileError.

    Programs that this one starts use the same file.
    """
    path = find_settings_file(environment, _working_folder())
    if path is None:
        return None
    file = read_settings_file(path)
    for setting in file.settings:
        environment.setdefault(setting.name, setting.value)
    environment[VARIABLE] = str(path)
    return file


def find_settings_file(environment: Mapping[str, str], folder: Path | None) -> Path | None:
    """Return the file that PAGANTIC_SETTINGS_FILE names, else that of the folder, else the user's; None for none."""
    if given := environment.get(VARIABLE):
        return None if given == NO_FILE else Path(given).expanduser().absolute()
    users = user_file(environment)
    places = [users] if folder is None else [folder / FILE_NAME, users]
    return next((path.absolute() for path in places if _is_file(path)), None)


def user_file(environment: Mapping[str, str]) -> Path:
    """Return the place of the user's settings file, which need not be there."""
    return config_folder(environment) / FILE_NAME


def read_settings_file(path: Path) -> SettingsFile:
    """Read a settings file; raises SettingsFileError, with a line for each wrong line of the file."""
    bindings = list(parse_stream(StringIO(_read_text(path))))
    problems: list[str] = []
    settings: dict[str, Setting] = {}
    for binding in bindings:
        name, value, line = binding.key or "", binding.value or "", _line_of(binding)
        if problem := _problem_of(binding, settings):
            problems.append(f"{path}:{line}: {problem}")
        elif name:
            settings[name.upper()] = Setting(name, value, line)
    if problems:
        raise SettingsFileError("\n".join(problems))
    return SettingsFile(path, tuple(settings.values()))


def origin_of(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return `FILE:LINE: ` of the settings file that gave a variable its value; empty for other variables."""
    value = environment.get(name)
    path = environment.get(VARIABLE, "")
    if value is None or path in ("", NO_FILE):
        return ""
    try:
        line = read_settings_file(Path(path)).line_of(name, value)
    except SettingsFileError:
        return ""
    return f"{path}:{line}: " if line else ""


def _working_folder() -> Path | None:
    try:
        return Path.cwd()
    except OSError:  # it was deleted
        return None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # its folder may not be searched
        return False


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as opened:
            _check_writers(path, os.fstat(opened.fileno()))
            content = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise SettingsFileError(f"{path}: it cannot be read: {(error.strerror or str(error)).lower()}") from None
    if len(content) > MAX_BYTES:
        raise SettingsFileError(f"{path}: it has more than {MAX_BYTES} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SettingsFileError(f"{path}: it is not UTF-8 text") from None


def _check_writers(path: Path, status: os.stat_result) -> None:
    """Refuse a file that another user could have written: its settings name programs that pagantic starts."""
    if status.st_uid not in (os.geteuid(), 0):
        raise SettingsFileError(f"{path}: it belongs to another user, so it is not used; {VARIABLE}=none does without")
    if status.st_mode & stat.S_IWOTH:
        raise SettingsFileError(f"{path}: every user can write it, so it is not used: run `chmod o-w {path}`")


def _line_of(binding: Binding) -> int:
    """Return the line of a binding's name: the parser counts empty lines before it as a part of it."""
    text = binding.original.string
    return binding.original.line + text[: len(text) - len(text.lstrip())].count("\n")


def _problem_of(binding: Binding, settings: Mapping[str, Setting]) -> str:
    """Return what is wrong with a line; empty for nothing."""
    name = binding.key
    if binding.error or (name is not None and not _NAME.fullmatch(name)):
        return f"it must be NAME=value, not {binding.original.string.strip()[:80]!r}"
    if name is None:
        return ""
    if problem := _problem_of_value(binding.value):
        return f"{name}: {problem}"
    if name.upper() == VARIABLE:
        return f"{name}: it belongs into the environment"
    if earlier := settings.get(name.upper()):
        return f"{name}: line {earlier.line} sets it too"
    return _misspelt_prefix(name)


def _problem_of_value(value: str | None) -> str:
    if value is None:
        return "it has no value: write a = and the value behind it"
    return "its value has a NUL character" if "\0" in value else ""


def _misspelt_prefix(name: str) -> str:
    """Return what is wrong with a name that is nearly one of pagantic's; other programs have names of their own."""
    first, _, rest = name.upper().partition("_")
    if first == _OURS or not difflib.get_close_matches(first, [_OURS], n=1, cutoff=_LIKENESS):
        return ""
    return f"{name}: no such setting; did you mean {_OURS}_{rest}?"
