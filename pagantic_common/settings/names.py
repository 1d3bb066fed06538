"""Which environment variables exist, and what a misspelt one was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

PREFIX = "PAGANTIC_"
AREAS = ("orchestrator", "inference", "constraint", "context", "rerank", "tools")
# What commands, the supervisor, the build and the tests read beside the services' settings.
TOOL_NAMES = frozenset(
    {
        "PAGANTIC_ADDRESS",
        "PAGANTIC_CORPUS",
        "PAGANTIC_START_LIMIT_S",
        "PAGANTIC_STATE",
        "PAGANTIC_SUITES",
        "PAGANTIC_SUPERVISED_FROM",
        *(f"{PREFIX}{area.upper()}_ADDRESS" for area in AREAS),
    }
)
TOOL_PREFIXES = ("PAGANTIC_TEST_", "PAGANTIC_ENGINE_")


def area_prefix(area: str) -> str:
    """Return what the names of an area's settings begin with."""
    return f"{PREFIX}{area.upper()}_"


def find_unknown(environment: Mapping[str, str], known: Iterable[str], areas: Iterable[str]) -> list[str]:
    """Return a line for each variable that nothing reads, with the nearest that exists.

    Args:
        environment: All variables; those that do not begin with PAGANTIC_ are passed over.
        known: Names of the settings of `areas`, and of those that every service shares.
        areas: Whose variables are judged; those of other areas are theirs to judge.
    """
    names = TOOL_NAMES | set(known)
    judged = tuple(map(area_prefix, areas))
    others = tuple(prefix for prefix in map(area_prefix, AREAS) if prefix not in judged)
    problems: list[str] = []
    for variable in sorted(environment):
        name = variable.upper()
        if not name.startswith(PREFIX) or name in names or name.startswith((*TOOL_PREFIXES, *others)):
            continue
        near = _nearest(name, names)
        problems.append(f"{variable}: no such setting{f'; did you mean {near}?' if near else ''}")
    return problems


def _nearest(name: str, names: Iterable[str]) -> str:
    """Return what was meant: the names where only an area was left out, or the name that is spelt most alike."""
    tail = name.removeprefix(PREFIX.rstrip("_"))
    if without_area := sorted(other for other in names if other.endswith(tail)):
        return " or ".join(without_area)
    return next(iter(difflib.get_close_matches(name, sorted(names), n=1)), "")
