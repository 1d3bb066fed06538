"""Finds the packages of guards, and runs guards inside a worker process, which caches the guards."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.guards.plugin import ENTRY_POINT_GROUP, MAX_WINDOW, Finding, Guard, GuardTraits
from pagantic_common.guards.redaction import Window
from services.orchestrator.core.guards.rules import GuardRule


def package_folders(rules: Iterable[GuardRule]) -> Iterator[str]:
    """Yield the folders that contain the packages of guards, without importing the packages.

    A worker may read installed packages and this module's package anyway, but not a package under development.
    """
    plugins = {rule.plugin for rule in rules}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        package = entry.module.partition(".")[0]
        if entry.name not in plugins:
            continue
        if entry.dist is not None:
            yield str(entry.dist.locate_file(""))
        spec = find_spec(package)
        if spec is not None:
            places = spec.submodule_search_locations or filter(None, [spec.origin])
            yield from (str(Path(place).parent) for place in places)


# The package metadata cannot name these guards, because a checkout and an installed wheel name their modules
# differently. They come after the guards of other packages, which cannot take their names.
_BUILT_IN = [
    EntryPoint(name, f"{__package__}.{module}:make_guard", ENTRY_POINT_GROUP)
    for name, module in (
        ("injection", "injection.guard"),
        ("judge", "judge"),
        ("length", "length"),
        ("personal_data", "personal_data"),
        ("secrets", "secrets"),
        ("topics", "topics"),
    )
]


def describe(plugin: str, options_json: str) -> GuardTraits:
    """Return the traits of a guard. Raises InvalidRequest if the guard cannot be created."""
    traits = _guard(plugin, options_json).traits
    if not 0 <= traits.window <= MAX_WINDOW:
        raise InvalidRequest(f"has a window of {traits.window} characters: 0 to {MAX_WINDOW} are taken")
    return traits


def find(plugin: str, options_json: str, windows: Sequence[Window]) -> list[tuple[Finding, ...]]:
    """Return the findings of a guard for each text."""
    guard = _guard(plugin, options_json)
    return [tuple(guard.find(window.text, window.start)) for window in windows]


@cache
def _guard(plugin: str, options_json: str) -> Guard:
    offered = {entry.name: entry for entry in (*entry_points(group=ENTRY_POINT_GROUP), *_BUILT_IN)}
    if plugin not in offered:
        names = ", ".join(sorted(offered))
        raise InvalidRequest(f"is not offered by an installed package; those in {ENTRY_POINT_GROUP!r} are: {names}")
    try:
        make = offered[plugin].load()
        guard: Guard = make(json.loads(options_json))
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"does not take its options: {error}") from None
    except PermissionError as error:  # A worker may read only packages and the guards file's folders.
        raise InvalidRequest(f"cannot read {error.filename!r}: name its folder in `folders` of the file") from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a package may raise anything
        raise InvalidRequest(f"cannot be loaded: {type(error).__name__}: {error}") from None
    return guard
