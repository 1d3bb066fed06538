"""Determines the installed parts of pagantic, and the user's resulting next step."""

from __future__ import annotations

import importlib.util
from typing import Final

CLIENT_ALONE: Final = "this installation has the client only: `pip install 'pagantic[server]'` brings the services"


def has_services() -> bool:
    """Return whether the services are installed, and not only the client."""
    return importlib.util.find_spec("supervisor") is not None


def reaching_step() -> str:
    """Return the user's next step if no system answers."""
    if has_services():
        return "start the services with `pagantic up`"
    return "name the system's address with `pagantic init --address HOST:PORT`"
