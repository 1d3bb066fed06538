"""What runs from a state folder: where it listens and which settings it was started with, for every later command."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from deploy.local.areas import DEFAULT_PORTS, Area

FILE = "running.json"
_START_SLACK_S = 10.0  # the clock may have been set since


@dataclass(frozen=True, slots=True)
class Record:
    """A running system.

    Args:
        pid: Of the supervisor, or of the host when that is all.
        started_s: When that process started; another one may have its pid now.
        is_host: Whether every service is in that one process.
        areas: Where the services listen.
        settings: Digests of the services' settings by name; values may be secret.
    """

    pid: int
    started_s: float
    is_host: bool
    areas: tuple[Area, ...]
    settings: Mapping[str, str]

    def differing(self, environment: Mapping[str, str]) -> list[str]:
        """Return the settings that are set in an environment, but not as the system runs."""
        return [name for name, digest in digests(environment).items() if self.settings.get(name) != digest]


def digests(environment: Mapping[str, str]) -> dict[str, str]:
    """Return digests of the services' settings in an environment; addresses that only commands read are none."""
    prefixes = tuple(f"PAGANTIC_{area.upper()}_" for area in DEFAULT_PORTS)
    commands = {f"{prefix}ADDRESS" for prefix in prefixes}
    names = sorted(name for name in environment if name.startswith(prefixes) and name not in commands)
    return {name: hashlib.sha256(environment[name].encode()).hexdigest() for name in names}


def save(state: Path, pid: int, areas: Iterable[Area], environment: Mapping[str, str], *, is_host: bool) -> None:
    """Remember what process `pid` runs; only this user can read it."""
    record = Record(pid, psutil.Process(pid).create_time(), is_host, tuple(areas), digests(environment))
    path = state / FILE
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    partial.touch(mode=0o600)
    partial.write_text(json.dumps(asdict(record), indent=1), encoding="utf-8")
    partial.replace(path)


def load(state: Path) -> Record | None:
    """Return what runs; None when nothing is remembered or its process is gone."""
    try:
        read = json.loads((state / FILE).read_text(encoding="utf-8"))
        record = Record(**{**read, "areas": tuple(Area(**area) for area in read["areas"])})
        is_alive = abs(psutil.Process(record.pid).create_time() - record.started_s) < _START_SLACK_S
    except (OSError, ValueError, KeyError, TypeError, psutil.Error):
        return None
    return record if is_alive else None


def forget(state: Path) -> None:
    """Remember nothing."""
    (state / FILE).unlink(missing_ok=True)
