"""The names of environment variables, and suggestions for misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from pagantic_common.domain.defaults import PORTS
from pagantic_common.storage.settings_file import VARIABLE as SETTINGS_FILE
from pagantic_common.storage.settings_file import origin_of

PREFIX = "PAGANTIC_"
AREAS = tuple(PORTS)
DOORS = ("http", "mcp")  # programs of the gateway that have settings
# Commands, the supervisor, the build and the tests use these variables.
TOOL_NAMES = frozenset(
    {
        "PAGANTIC_ADDRESS",
        "PAGANTIC_API_KEY",
        "PAGANTIC_API_KEY_FILE",
        "PAGANTIC_LLAMA_SERVER",
        "PAGANTIC_MODELS_FOLDER",
        "PAGANTIC_MODELS_HOSTS",
        "PAGANTIC_MODELS_HUB_ENDPOINT",
        "PAGANTIC_PLAINTEXT_KEY",
        "PAGANTIC_SERVE_HTTP",
        SETTINGS_FILE,
        "PAGANTIC_START_LIMIT_S",
        "PAGANTIC_STATE",
        "PAGANTIC_SUITES",
        "PAGANTIC_SUPERVISED_FROM",
        *(f"{PREFIX}{area.upper()}_ADDRESS" for area in AREAS),
    }
)
TOOL_PREFIXES = ("PAGANTIC_TEST_", "PAGANTIC_ENGINE_")


def area_prefix(area: str) -> str:
    """Return the prefix of the variables in an area."""
    return f"{PREFIX}{area.upper()}_"


def find_unknown(environment: Mapping[str, str], known: Iterable[str], areas: Iterable[str]) -> list[str]:
    """Return a line for each unknown variable, with the nearest known name.

    Args:
        environment: All environment variables. Only variables that begin with PAGANTIC_ are checked.
        known: Names of the settings of `areas` and of the shared settings.
        areas: The areas or doors to check. All other areas and doors check their own variables.
    """
    names = TOOL_NAMES | set(known)
    judged = tuple(map(area_prefix, areas))
    others = tuple(prefix for prefix in map(area_prefix, (*AREAS, *DOORS)) if prefix not in judged)
    problems: list[str] = []
    for variable in sorted(environment):
        name = variable.upper()
        if not name.startswith(PREFIX) or name in names or name.startswith((*TOOL_PREFIXES, *others)):
            continue
        problem = f"{origin_of(variable, environment)}{variable}: no such setting"
        if near := _nearest(name, names):
            problem += f"; did you mean {near}?"
        problems.append(problem)
    return problems


def _nearest(name: str, names: Iterable[str]) -> str:
    """Return the names that lack only an area; otherwise, the most similar name, or an empty string."""
    rest = name.removeprefix(PREFIX)
    with_area = {area_prefix(area) + rest for area in (*AREAS, *DOORS)}
    if without_area := sorted(with_area.intersection(names)):
        return " or ".join(without_area)
    return next(iter(difflib.get_close_matches(name, sorted(names), n=1)), "")
