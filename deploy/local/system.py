"""Brings the whole system up and down on this machine, and tells how it is. Prints progress as plain lines."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from deploy.local.areas import Area, child_environment, read_areas, state_folder
from deploy.local.probing import find_taken_ports, probe_health
from deploy.local.supervision import ProcessState, Supervision, SupervisionError

START_DEADLINE_S = 120.0
PROGRESS_INTERVAL_S = 1.0
POLL_INTERVAL_S = 0.2


class StartFailed(Exception):
    """The system did not come up; the message says why. Nothing is left running."""


@dataclass(frozen=True, slots=True)
class AreaStatus:
    """How one service is."""

    name: str
    state: str
    pid: int
    address: str
    health: str
    uptime_s: float

    @property
    def is_serving(self) -> bool:
        """Tell whether it can be used."""
        return self.health == "SERVING" and self.state == "RUNNING"


class LocalSystem:
    """All services of one state folder. Raises ConfigurationError when the environment names impossible ports."""

    def __init__(self) -> None:
        self.areas = read_areas()
        self.supervision = Supervision(state_folder())

    def is_up(self) -> bool:
        """Tell whether its supervisor runs, whatever the services do."""
        return self.supervision.is_running()

    def start(self) -> None:
        """Start everything and wait until all services serve; raises StartFailed after stopping everything."""
        if self.supervision.has_daemon():
            raise StartFailed("a supervisor of this state folder runs but does not answer: run `pagantic down` first")
        if problems := find_taken_ports(self.areas):
            raise StartFailed("\n".join(problems))
        started_s = time.monotonic()
        try:
            self.supervision.start(self.areas, child_environment(self.areas, self.supervision.state, os.environ))
            self._wait_until_serving(started_s)
        except SupervisionError as error:
            self.stop()
            raise StartFailed(str(error)) from None
        except BaseException:
            self.stop()
            raise
        print(f"up: {len(self.areas)} services serve after {time.monotonic() - started_s:.1f} s", flush=True)

    def stop(self) -> None:
        """Stop everything and wait; raises SupervisionError when something stays."""
        started_s = time.monotonic()
        last_s = 0.0

        def progress(waited_s: float) -> None:
            nonlocal last_s
            if waited_s - last_s >= PROGRESS_INTERVAL_S:
                last_s = waited_s
                left = [p.name for p in self.supervision.processes().values() if p.pid]
                print(f"stopping: {' '.join(left) or 'supervisor'} … {waited_s:.0f} s", flush=True)

        self.supervision.stop(progress)
        print(f"down: everything stopped after {time.monotonic() - started_s:.1f} s", flush=True)

    def status(self) -> list[AreaStatus]:
        """Return how each service is, in the order of the areas."""
        processes = self.supervision.processes()
        answers = _probe_all(self.areas)
        return [
            _status_of(area, processes.get(area.name), health) for area, health in zip(self.areas, answers, strict=True)
        ]

    def _wait_until_serving(self, started_s: float) -> None:
        waiting = list(self.areas)
        first_pids: dict[str, int] = {}
        last_s = 0.0
        while waiting:
            self._check_processes(first_pids)
            answers = _probe_all(waiting)
            waiting = [area for area, health in zip(waiting, answers, strict=True) if health != "SERVING"]
            waited_s = time.monotonic() - started_s
            names = " ".join(area.name for area in waiting)
            if waiting and waited_s > START_DEADLINE_S:
                tails = "\n".join(self._describe_end(area.name, "its log ends with") for area in waiting)
                raise StartFailed(f"not serving after {START_DEADLINE_S:.0f} s: {names}\n{tails}")
            if waiting and waited_s - last_s >= PROGRESS_INTERVAL_S:
                last_s = waited_s
                print(f"waiting: {names} … {waited_s:.0f} s", flush=True)
            time.sleep(POLL_INTERVAL_S)
        self._check_processes(first_pids)

    def _check_processes(self, first_pids: dict[str, int]) -> None:
        for process in self.supervision.processes().values():
            was_restarted = process.pid and first_pids.setdefault(process.name, process.pid) != process.pid
            if process.has_failed or was_restarted:
                what = f"ended while starting ({process.problem})" if process.problem else "ended while starting"
                raise StartFailed(self._describe_end(process.name, what))

    def _describe_end(self, name: str, what: str) -> str:
        tail = self.supervision.log_tail(name)
        lines = "\n".join(f"  | {line}" for line in tail.splitlines()) or "  | (its log is empty)"
        return f"the {name} service: {what}\n{lines}"


def _probe_all(areas: Sequence[Area]) -> list[str]:
    with ThreadPoolExecutor(len(areas)) as pool:
        return list(pool.map(probe_health, [area.address for area in areas]))


def _status_of(area: Area, process: ProcessState | None, health: str) -> AreaStatus:
    if process is None:
        return AreaStatus(area.name, "DOWN", 0, area.address, health, 0.0)
    return AreaStatus(area.name, process.state, process.pid, area.address, health, process.uptime_s)
