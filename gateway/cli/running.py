"""Finds the services that run from the user's state folder. Every command uses this module when it starts."""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping, Sequence
from typing import TypedDict

from pagantic_common.client.credentials import has_key
from pagantic_common.domain.addresses import caller_address
from pagantic_common.domain.defaults import state_folder
from pagantic_common.domain.errors import InvalidRequest


class Place(TypedDict):
    """The address on which a program of the system listens."""

    name: str
    host: str
    port: int


def read_addresses(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the address of each area whose service runs from the state folder, or {} if no services run."""
    return {area["name"]: caller_address(area["host"], area["port"]) for area in _read(environment, "areas")}


def use_remembered_addresses(environment: MutableMapping[str, str]) -> None:
    """Set each unset variable to the address of its service, if the service runs from the state folder."""
    for name, address in read_addresses(environment).items():
        variable = f"PAGANTIC_{name.upper()}_ADDRESS"
        if name == "orchestrator":
            variable = "PAGANTIC_ADDRESS"
        elif name == "context" and has_key(environment):
            continue  # The tenant's collections are reached through the orchestrator.
        environment.setdefault(variable, address)


def read_ports(environment: Mapping[str, str]) -> set[int]:
    """Return the ports of the system that runs from the state folder, including the port of its HTTP gateway."""
    return {int(place["port"]) for kind in ("areas", "doors") for place in _read(environment, kind)}


def _read(environment: Mapping[str, str], kind: str) -> Sequence[Place]:
    try:
        running = json.loads((state_folder(environment) / "running.json").read_text(encoding="utf-8"))
        places = [Place(name=area["name"], host=area["host"], port=area["port"]) for area in running.get(kind, ())]
        is_alive = _is_alive(running["pid"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, InvalidRequest):
        return ()
    return places if is_alive else ()


def _is_alive(pid: int) -> bool:
    import psutil

    return psutil.pid_exists(pid)
