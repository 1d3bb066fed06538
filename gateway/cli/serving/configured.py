"""Applies the settings file to every command."""

from __future__ import annotations

import os

from gateway.cli.output import refuse
from pagantic_common.storage.settings_file import VARIABLE, SettingsFile, SettingsFileError, use_settings_file
from pagantic_common.storage.settings_names import PREFIX, find_unknown

# `init` rewrites the file, `doctor` reports its problems itself, and an invalid file must not keep a system from
# stopping or from reporting its status.
_WITHOUT = ("init", "doctor", "down", "status")


def use_settings() -> str:
    """Set the variables from the settings file, and return the file's problems, one per line."""
    try:
        read_settings()
    except SettingsFileError as error:
        return str(error)
    return ""


def check_settings(problems: str, command: str | None) -> None:
    """End the program if the settings file has problems, unless the command may run with such a file."""
    if problems and command not in _WITHOUT:
        refuse(problems.splitlines())


def read_settings() -> SettingsFile | None:
    """Set the variables from the settings file, and return the file.

    Raises SettingsFileError if the file is invalid or contains unknown names. The names of a single service's settings
    are checked by `up` and `doctor`, where that service is present.
    """
    file = use_settings_file(os.environ)
    if file is not None and (problems := _unknown_names(file)):
        raise SettingsFileError("\n".join(problems))
    return file


def _unknown_names(file: SettingsFile) -> list[str]:
    variables = {setting.name: setting.value for setting in file.settings} | {VARIABLE: str(file.path)}
    if not find_unknown(variables, (), ()):
        return []
    # A file that sets only addresses and single services does not need the slow import of the settings.
    from pagantic_common.settings import SHARED_SETTINGS

    return find_unknown(variables, {f"{PREFIX}{name}".upper() for name in SHARED_SETTINGS}, ())
