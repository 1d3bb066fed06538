"""Where the state and the cache of a user lie. Knows no settings, so that it is imported in no time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def state_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder for state: PAGANTIC_STATE, or `pagantic` in the user's state home. It is absolute."""
    if given := environment.get("PAGANTIC_STATE"):
        return Path(given).expanduser().absolute()
    home = environment.get("XDG_STATE_HOME")
    return Path(home or home_folder() / ".local" / "state") / "pagantic"


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of pagantic in the user's cache."""
    return Path(environment.get("XDG_CACHE_HOME") or home_folder() / ".cache") / "pagantic"


def home_folder() -> Path:
    """Return the user's home; the current folder for a user without one, as in some containers."""
    try:
        return Path.home()
    except RuntimeError:
        return Path.cwd()
