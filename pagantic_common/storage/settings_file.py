"""Finds and reads the settings file, which has one variable per line. The environment takes precedence over it."""

from __future__ import annotations

import difflib
import os
import re
import stat
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pagantic_common.domain.defaults import config_folder, expand_home

if TYPE_CHECKING:
    from dotenv.parser import Binding

FILE_NAME: Final = "pagantic.env"
VARIABLE: Final = "PAGANTIC_SETTINGS_FILE"
NO_FILE: Final = "none"
MAX_BYTES: Final = 1024 * 1024
_OURS = "PAGANTIC"
_LIKENESS = 0.7
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# An invalid line may be part of a secret, such as a multi-line key. Only text that matches this pattern is shown as
# a name.
_SHOWN = re.compile(r"(?=.{1,64}$)([A-Z]+(_[A-Z0-9]+)+|pagantic(_[a-z0-9]+)+)")
_BEGIN = re.compile(r"\s*(?:export\s+)?([^\s=]*)")


class SettingsFileError(Exception):
    """The settings file cannot be read, or a line of it is invalid. The message names the file and the line."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable in a settings file."""

    name: str
    value: str
    line: int


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A settings file that has been read."""

    path: Path
    settings: tuple[Setting, ...]

    def line_of(self, name: str, value: str) -> int:
        """Return the line that sets a variable to this value, or 0."""
        lines = (setting.line for setting in self.settings if (setting.name, setting.value) == (name, value))
        return next(lines, 0)


def use_settings_file(environment: MutableMapping[str, str]) -> SettingsFile | None:
    """Set the unset variables from the settings file. Returns None without a file.

    Programs that this program starts use the same file. Raises SettingsFileError if lines are invalid, but only after
    the other variables are set, because they are needed to stop a system.
    """
    path = find_settings_file(environment, _working_folder())
    if path is None:
        return None
    file, problems = _read(path)
    for setting in file.settings:
        environment.setdefault(setting.name, setting.value)
    environment[VARIABLE] = str(path)
    _raise_for(problems)
    return file


def find_settings_file(environment: Mapping[str, str], folder: Path | None) -> Path | None:
    """Return the settings file, or None if it does not exist.

    It is the file in PAGANTIC_SETTINGS_FILE, or else the file in the folder, or else the user's file.
    """
    if setting := environment.get(VARIABLE):
        return None if setting == NO_FILE else _named_file(setting)
    users = user_file(environment)
    places = [users] if folder is None else [folder / FILE_NAME, users]
    return next((path.absolute() for path in places if _is_there(path)), None)


def _named_file(given: str) -> Path:
    try:
        return expand_home(given).absolute()
    except ValueError as error:
        raise SettingsFileError(f"{VARIABLE} is {given!r}: {error}") from None


def user_file(environment: Mapping[str, str]) -> Path:
    """Return the path of the user's settings file, which need not exist."""
    return config_folder(environment) / FILE_NAME


def read_settings_file(path: Path) -> SettingsFile:
    """Read a settings file. Raises SettingsFileError, whose message has a line for each invalid line of the file."""
    file, problems = _read(path)
    _raise_for(problems)
    return file


def origin_of(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return `FILE:LINE: ` for a variable whose value the settings file sets, and otherwise an empty string."""
    value = environment.get(name)
    path = environment.get(VARIABLE, "")
    if value is None or path in ("", NO_FILE):
        return ""
    try:
        line = _read(Path(path))[0].line_of(name, value)
    except SettingsFileError:
        return ""
    return f"{path}:{line}: " if line else ""


def _read(path: Path) -> tuple[SettingsFile, list[str]]:
    """Return the settings on the valid lines of a file, and the problems of the other lines.

    Raises SettingsFileError if the file cannot be read.
    """
    from dotenv.parser import parse_stream  # noqa: PLC0415 - most starts find no file

    problems: list[str] = []
    settings: dict[str, Setting] = {}
    for binding in parse_stream(StringIO(_read_text(path))):
        name, value, line = binding.key or "", binding.value or "", _line_of(binding)
        if problem := _problem_of(binding, settings):
            problems.append(f"{path}:{line}: {problem}")
        elif name:
            settings[name] = Setting(name, value, line)
    return SettingsFile(path, tuple(settings.values())), problems


def _raise_for(problems: list[str]) -> None:
    if problems:
        raise SettingsFileError("\n".join(problems))


def _working_folder() -> Path | None:
    try:
        return Path.cwd()
    except OSError:  # The working folder was deleted.
        return None


def _is_there(path: Path) -> bool:
    """Return whether a file or a folder exists. A folder may be a failed mount, and is refused when it is read."""
    try:
        return path.is_file() or path.is_dir()
    except OSError:
        # The user lacks permission to search the folder of the file.
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
    """Raise SettingsFileError if another user could have written the file.

    Its settings name programs that pagantic starts.
    """
    if status.st_uid not in (os.geteuid(), 0):
        raise SettingsFileError(f"{path}: it belongs to another user, so it is not used; {VARIABLE}=none does without")
    if status.st_mode & stat.S_IWOTH:
        raise SettingsFileError(f"{path}: every user can write it, so it is not used: run `chmod o-w {path}`")


def _line_of(binding: Binding) -> int:
    """Return the line of a binding's name. The parser counts preceding empty lines as part of the binding."""
    text = binding.original.string
    return binding.original.line + text[: len(text) - len(text.lstrip())].count("\n")


def _problem_of(binding: Binding, settings: Mapping[str, Setting]) -> str:
    """Return the problem of a line, without its value, or an empty string if the line is valid."""
    name = binding.key
    if binding.error or (name is not None and not _NAME.fullmatch(name)):
        return f"{_shown_name(binding)}it must be NAME=value, with the quotes closed"
    if name is None:
        return ""
    if problem := _problem_of_value(binding.value):
        return f"{_shown_name(binding)}{problem}"
    return _problem_of_name(name, settings)


def _problem_of_name(name: str, settings: Mapping[str, Setting]) -> str:
    if problem := _misspelt_prefix(name):
        return problem
    upper = name.upper()
    if upper == VARIABLE:
        return f"{name}: it belongs into the environment"
    if upper.startswith(f"{_OURS}_") and name != upper:
        return f"{name}: names are in upper case; write {upper}"
    if earlier := settings.get(name):
        return f"{name}: line {earlier.line} sets it too"
    return ""


def _shown_name(binding: Binding) -> str:
    """Return `NAME: ` for an invalid line, or an empty string if its start does not look like a name."""
    begin = _BEGIN.match(binding.original.string)
    if begin is None or not _SHOWN.fullmatch(begin[1]):
        return ""
    return f"{begin[1]}: "


def _problem_of_value(value: str | None) -> str:
    if value is None:
        return "it has no value: write a = and the value behind it"
    return "its value has a NUL character" if "\0" in value else ""


def _misspelt_prefix(name: str) -> str:
    """Return the problem of a name whose prefix resembles pagantic's, or an empty string.

    Other programs may use any other name.
    """
    first, _, rest = name.upper().partition("_")
    if first == _OURS or not difflib.get_close_matches(first, [_OURS], n=1, cutoff=_LIKENESS):
        return ""
    return f"{name}: no such setting; did you mean {_OURS}_{rest}?"
