"""The record of the system that runs from a state folder, for later commands: its addresses and settings."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from deploy.local.areas import GATEWAY_VARIABLE, Area
from pagantic_common.domain.defaults import PORTS

FILE = "running.json"
_START_SLACK_S = 10.0  # the clock may have been set since


@dataclass(frozen=True, slots=True)
class Record:
    """A running system.

    Args:
        pid: Process id of the supervisor, or of the host that runs every service.
        started_s: Start time of that process; later another process may have its pid.
        is_host: Whether one process runs every service.
        areas: The addresses of the services.
        settings: Digests of the services' settings by name, because values may be secret.
        doors: The address of the HTTP gateway, if it runs too. It is no service that others call.
    """

    pid: int
    started_s: float
    is_host: bool
    areas: tuple[Area, ...]
    settings: Mapping[str, str]
    doors: tuple[Area, ...] = ()

    def differing(self, environment: Mapping[str, str]) -> list[str]:
        """Return the settings of an environment that differ from those of the running system."""
        return [name for name, digest in digests(environment).items() if self.settings.get(name) != digest]


def digests(environment: Mapping[str, str]) -> dict[str, str]:
    """Return digests of the services' settings in an environment; addresses for commands are no settings."""
    prefixes = tuple(f"PAGANTIC_{area.upper()}_" for area in PORTS)
    commands = {f"{prefix}ADDRESS" for prefix in prefixes}
    names = sorted(
        name for name in environment if name.startswith((*prefixes, GATEWAY_VARIABLE)) and name not in commands
    )
    return {name: hashlib.sha256(environment[name].encode()).hexdigest() for name in names}


def save(
    state: Path,
    pid: int,
    areas: Iterable[Area],
    environment: Mapping[str, str],
    *,
    is_host: bool,
    doors: Iterable[Area] = (),
) -> None:
    """Record the system of process `pid`; only this user can read the record."""
    record = Record(pid, psutil.Process(pid).create_time(), is_host, tuple(areas), digests(environment), tuple(doors))
    path = state / FILE
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    partial.touch(mode=0o600)
    partial.write_text(json.dumps(asdict(record), indent=1), encoding="utf-8")
    partial.replace(path)


def load(state: Path) -> Record | None:
    """Return the record; None when there is none or its process is gone."""
    try:
        read = json.loads((state / FILE).read_text(encoding="utf-8"))
        addresses = {key: tuple(Area(**area) for area in read.get(key, ())) for key in ("areas", "doors")}
        record = Record(**{**read, **addresses})
        started_s = psutil.Process(record.pid).create_time()
    except (OSError, ValueError, KeyError, TypeError, psutil.Error):
        return None
    if abs(started_s - record.started_s) >= _START_SLACK_S:  # another process has the pid
        return None
    return record


def forget(state: Path) -> None:
    """Remove the record."""
    (state / FILE).unlink(missing_ok=True)
