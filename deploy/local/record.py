"""The record of the system that runs from a state folder: its addresses and settings, for later commands."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from deploy.local.areas import GATEWAY_PREFIX, GATEWAY_VARIABLE, Area, read_switch
from pagantic_common.domain.defaults import PORTS

FILE = "running.json"
_START_SLACK_S = 10.0  # The clock may have been adjusted since the start.


@dataclass(frozen=True, slots=True)
class Record:
    """A running system.

    Args:
        pid: Process id of the supervisor, or of the host that runs every service.
        started_s: Start time of that process, because its pid may later be reused.
        is_host: Whether a single process runs every service.
        areas: The addresses of the services.
        settings: Digests of the services' settings by name, because values may be secret.
        doors: The address of the HTTP gateway, if it is also running. No service calls it.
    """

    pid: int
    started_s: float
    is_host: bool
    areas: tuple[Area, ...]
    settings: Mapping[str, str]
    doors: tuple[Area, ...] = ()

    def differing(self, environment: Mapping[str, str]) -> list[str]:
        """Return the settings of an environment that differ from the settings of the running system."""
        running = {**digests({GATEWAY_VARIABLE: "off"}), **self.settings}
        requested = digests(environment, with_gateway=bool(self.doors))
        return [name for name, digest in requested.items() if running.get(name) != digest]


def digests(environment: Mapping[str, str], *, with_gateway: bool = False) -> dict[str, str]:
    """Return digests of the services' settings in an environment, except addresses that only commands use.

    The settings of the HTTP gateway are included if it is running or if the environment enables it.
    """
    prefixes = [f"PAGANTIC_{area.upper()}_" for area in PORTS]
    commands = {f"{prefix}ADDRESS" for prefix in prefixes}
    if with_gateway or read_switch(environment.get(GATEWAY_VARIABLE, "")):
        prefixes.append(GATEWAY_PREFIX)
    names = sorted(
        name for name in environment if name.startswith((*prefixes, GATEWAY_VARIABLE)) and name not in commands
    )
    return {name: hashlib.sha256(_meaning(name, environment[name]).encode()).hexdigest() for name in names}


def _meaning(name: str, value: str) -> str:
    """Return the canonical form of a setting's value."""
    is_on = read_switch(value)
    if name != GATEWAY_VARIABLE or is_on is None:
        return value
    return "on" if is_on else "off"


def save(
    state: Path,
    pid: int,
    areas: Iterable[Area],
    environment: Mapping[str, str],
    *,
    is_host: bool,
    doors: Iterable[Area] = (),
) -> None:
    """Record the system of process `pid`. Only this user can read the record."""
    record = Record(pid, psutil.Process(pid).create_time(), is_host, tuple(areas), digests(environment), tuple(doors))
    path = state / FILE
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    partial.touch(mode=0o600)
    partial.write_text(json.dumps(asdict(record), indent=1), encoding="utf-8")
    partial.replace(path)


def load(state: Path) -> Record | None:
    """Return the record, or None if it is missing or its process has ended."""
    try:
        read = json.loads((state / FILE).read_text(encoding="utf-8"))
        addresses = {key: tuple(Area(**area) for area in read.get(key, ())) for key in ("areas", "doors")}
        record = Record(**{**read, **addresses})
        started_s = psutil.Process(record.pid).create_time()
    except (OSError, ValueError, KeyError, TypeError, psutil.Error):
        return None
    if abs(started_s - record.started_s) >= _START_SLACK_S:  # A different process has the pid now.
        return None
    return record


def forget(state: Path) -> None:
    """Remove the record."""
    (state / FILE).unlink(missing_ok=True)
