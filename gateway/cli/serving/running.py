"""Finds the services that run from the user's state folder. Loads little: each completion of a line asks it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pagantic_common.domain.defaults import HOST, state_folder

_ANY_HOST = ("0.0.0.0", "::", "[::]")  # noqa: S104 - compared with, not bound


def read_addresses(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the addresses of the services that run from the state folder, by area; empty where none do."""
    import psutil  # noqa: PLC0415 - it is needed only where there is a file

    try:
        running = json.loads((state_folder(environment) / "running.json").read_text(encoding="utf-8"))
        addresses = {area["name"]: f"{_host_of(area['host'])}:{area['port']}" for area in running["areas"]}
        is_alive = psutil.pid_exists(running["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return addresses if is_alive else {}


def _host_of(host: str) -> str:
    return HOST if host in _ANY_HOST else host
