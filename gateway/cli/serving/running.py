"""Finds the services that run from the user's state folder. Loads little: each completion of a line asks it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypedDict

from pagantic_common.domain.defaults import HOST, state_folder
from pagantic_common.domain.errors import InvalidRequest

_ANY_HOST = ("0.0.0.0", "::", "[::]")  # noqa: S104 - compared with, not bound


class Place(TypedDict):
    """Where a program of the system listens."""

    name: str
    host: str
    port: int


def read_addresses(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the addresses of the services that run from the state folder, by area; empty where none do."""
    return {area["name"]: f"{_host_of(area['host'])}:{area['port']}" for area in _read(environment, "areas")}


def read_ports(environment: Mapping[str, str]) -> set[int]:
    """Return the ports of the system that runs from the state folder, with that of its HTTP gateway."""
    return {int(place["port"]) for kind in ("areas", "doors") for place in _read(environment, kind)}


def _read(environment: Mapping[str, str], kind: str) -> Sequence[Place]:
    import psutil  # noqa: PLC0415 - it is needed only where there is a file

    try:
        running = json.loads((state_folder(environment) / "running.json").read_text(encoding="utf-8"))
        places = [Place(name=one["name"], host=one["host"], port=one["port"]) for one in running.get(kind, ())]
        is_alive = psutil.pid_exists(running["pid"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, InvalidRequest):
        return ()
    return places if is_alive else ()


def _host_of(host: str) -> str:
    return HOST if host in _ANY_HOST else host
