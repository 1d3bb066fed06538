"""Brings the whole system up and down on this machine, and shows its state."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

from deploy.local import record
from deploy.local.areas import Area, ConfigurationError, child_environment, read_areas
from deploy.local.known_settings import check_names
from deploy.local.leftovers import stop_leftovers
from deploy.local.probing import find_taken_ports, probe_health
from deploy.local.progress import Progress
from deploy.local.supervision import ProcessState, Supervision, SupervisionError
from pagantic_common.settings import state_folder

START_LIMIT_VARIABLE = "PAGANTIC_START_LIMIT_S"
DEFAULT_START_LIMIT_S = 120.0
POLL_INTERVAL_S = 0.2
ACTIVITY_INTERVAL_S = 1.0
WORKING_CPU_RATIO = 0.1
WORKING_BYTES = 1024 * 1024
HOST_STOP_S = 60.0


class StartFailed(Exception):
    """The system did not come up; the message says why. Nothing that this start began is left running."""


@dataclass(frozen=True, slots=True)
class AreaStatus:
    """The state of one service."""

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
    """All services of one state folder. Raises ConfigurationError when the environment names impossible values."""

    def __init__(self) -> None:
        self.supervision = Supervision(state_folder().resolve())
        self.record = record.load(self.supervision.state)
        self.areas = self.record.areas if self.record is not None else read_areas()
        self._start_limit_s = _read_start_limit()

    @property
    def state(self) -> Path:
        """Its folder."""
        return self.supervision.state

    def is_up(self) -> bool:
        """Tell whether its supervisor or host runs, whatever the services do."""
        return self.supervision.is_running() or (self.record is not None and self.record.is_host)

    def start(self) -> bool:
        """Start everything and wait until all is ready; False when another command did just that meanwhile.

        Raises ConfigurationError for a setting that does not exist, StartFailed after stopping what it started.
        """
        if self.record is None:
            check_names(os.environ)
        self.supervision.make_folders()
        with Progress() as progress, self.supervision.starting(lambda: progress.tell("waiting for another `up`")):
            self.record = record.load(self.state)
            if self.is_up():
                self.areas = self.record.areas if self.record is not None else self.areas
                return False
            self._start(progress)
        took = f"{len(self.areas)} services are ready after {progress.waited_s:.1f} s"
        print(f"up: {took}; state in {self.state}", flush=True)
        return True

    def _start(self, progress: Progress) -> None:
        if self.supervision.daemon_pid():
            raise StartFailed("a supervisor of this state folder runs but does not answer: run `pagantic down` first")
        self._stop_leftovers(progress)
        if problems := find_taken_ports(self.areas):
            raise StartFailed("\n".join(problems))
        pid = 0
        try:
            pid = self.supervision.start(self.areas, child_environment(self.areas, self.state, os.environ))
            record.save(self.state, pid, self.areas, os.environ, is_host=False)
            self._wait_until_ready(progress)
        except BaseException as error:
            if not pid or self.supervision.daemon_pid() == pid:  # another command has not replaced it
                self._stop_supervised(progress)
            if isinstance(error, SupervisionError):
                raise StartFailed(str(error)) from None
            raise

    def stop(self) -> bool:
        """Stop everything and wait; False when nothing ran. Raises SupervisionError when something stays."""
        with Progress() as progress:
            if self.record is not None and self.record.is_host:
                self._stop_host(self.record.pid, progress)
            elif self.supervision.is_running() or self.supervision.daemon_pid():
                self._stop_supervised(progress)
            elif not self._stop_leftovers(progress):
                return False
        print(f"down: all services stopped after {progress.waited_s:.1f} s", flush=True)
        return True

    def status(self) -> list[AreaStatus]:
        """Return the state of each service, in the order of the areas."""
        processes = self._host_processes() or self.supervision.processes()
        answers = _probe_all(self.areas)
        return [
            _status_of(area, processes.get(area.name), health) for area, health in zip(self.areas, answers, strict=True)
        ]

    def _host_processes(self) -> dict[str, ProcessState]:
        if self.record is None or not self.record.is_host:
            return {}
        uptime_s = max(0.0, time.time() - self.record.started_s)
        return {area.name: ProcessState(area.name, "RUNNING", self.record.pid, uptime_s, "") for area in self.areas}

    def _stop_host(self, pid: int, progress: Progress) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            host = psutil.Process(pid)
            host.terminate()
            while host.is_running() and host.status() != psutil.STATUS_ZOMBIE:
                if progress.waited_s > HOST_STOP_S:
                    raise SupervisionError(f"the host (pid {pid}) did not stop within {HOST_STOP_S:.0f} s")
                progress.tell("stopping: host")
                time.sleep(POLL_INTERVAL_S)
        record.forget(self.state)

    def _stop_supervised(self, progress: Progress) -> None:
        def tell(_waited_s: float) -> None:
            left = [process.name for process in self.supervision.processes().values() if process.pid]
            progress.tell(f"stopping: {' '.join(left) or 'supervisor'}")

        self.supervision.stop(tell)
        record.forget(self.state)

    def _stop_leftovers(self, progress: Progress) -> bool:
        def wait() -> None:
            progress.tell("stopping what a dead supervisor has left")

        names = stop_leftovers(self.state, self.supervision.daemon_pid(), wait)
        if names:
            print(f"stopped what a dead supervisor had left: {' '.join(sorted(names))}", flush=True)
        return bool(names)

    def _wait_until_ready(self, progress: Progress) -> None:
        waiting = sorted(self.areas, key=lambda area: area.name == "orchestrator")  # it waits for others, so it is last
        first_pids: dict[str, int] = {}
        activity = _Activity()
        while waiting:
            processes = self._check_processes(first_pids)
            answers = _probe_all(waiting)
            waiting = [area for area, health in zip(waiting, answers, strict=True) if health != "SERVING"]
            texts = [self._describe_wait(area.name) for area in waiting]
            activity.look(texts, [processes[area.name].pid for area in waiting if area.name in processes])
            if waiting and activity.idle_s > self._start_limit_s:
                tails = "\n".join(self._describe_end(area.name, "its log ends with") for area in waiting)
                names = " ".join(area.name for area in waiting)
                raise StartFailed(
                    f"not ready, and nothing has happened for {self._start_limit_s:.0f} s: {names}\n{tails}\n"
                    f"if it only takes longer, raise {START_LIMIT_VARIABLE}"
                )
            if waiting:
                progress.tell(f"waiting: {'; '.join(texts)}")
                time.sleep(POLL_INTERVAL_S)
        self._check_processes(first_pids)

    def _check_processes(self, first_pids: dict[str, int]) -> dict[str, ProcessState]:
        processes = self.supervision.processes()
        if not processes:
            log = self.supervision.logs / "supervisord.log"
            raise StartFailed(f"the supervisor is gone: another command has stopped it, or {log} says why")
        for process in processes.values():
            was_restarted = process.pid and first_pids.setdefault(process.name, process.pid) != process.pid
            if process.has_failed or was_restarted:
                what = f"ended while starting ({process.problem})" if process.problem else "ended while starting"
                raise StartFailed(self._describe_end(process.name, what))
        return processes

    def _describe_wait(self, name: str) -> str:
        """Return a service's name and, as far as its log says, what it does."""
        lines = self.supervision.log_tail(name).splitlines()
        try:
            last = json.loads(lines[-1]) if lines else {}
        except ValueError:  # logs as text
            last = {}
        what = str(last.get("reason") or last.get("event") or "")
        size = f" {last['size_mb']} MB" if "size_mb" in last else ""
        return f"{name}: {what}{size}" if what else name

    def _describe_end(self, name: str, what: str) -> str:
        tail = self.supervision.log_tail(name)
        lines = "\n".join(f"  | {line}" for line in tail.splitlines()) or "  | (its log is empty)"
        return f"the {name} service: {what}\n{lines}"


class _Activity:
    """Since when nothing has happened: no new word in the logs, no processor time, no memory taken."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._looked_s = -math.inf
        self._happened_s = time.monotonic()
        self._cpu_s = self._bytes = 0.0

    @property
    def idle_s(self) -> float:
        """How long nothing has happened."""
        return time.monotonic() - self._happened_s

    def look(self, texts: list[str], pids: Sequence[int]) -> None:
        """See whether something has happened."""
        now_s = time.monotonic()
        if now_s - self._looked_s < ACTIVITY_INTERVAL_S:
            return
        cpu_s, size = _used(pids)
        worked = cpu_s - self._cpu_s > WORKING_CPU_RATIO * min(now_s - self._looked_s, ACTIVITY_INTERVAL_S)
        if texts != self._texts or worked or abs(size - self._bytes) > WORKING_BYTES:
            self._happened_s = now_s
        self._texts, self._looked_s, self._cpu_s, self._bytes = texts, now_s, cpu_s, size


def _used(pids: Sequence[int]) -> tuple[float, float]:
    cpu_s = size = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            for one in (process, *process.children(recursive=True)):
                cpu_s += sum(one.cpu_times()[:2])
                size += one.memory_info().rss
    return cpu_s, size


def _read_start_limit() -> float:
    text = os.environ.get(START_LIMIT_VARIABLE) or str(DEFAULT_START_LIMIT_S)
    try:
        limit_s = float(text)
    except ValueError:
        limit_s = 0.0
    if not 1 <= limit_s < math.inf:
        raise ConfigurationError(f"{START_LIMIT_VARIABLE} is {text!r}: it must be a number of seconds, at least 1")
    return limit_s


def _probe_all(areas: Sequence[Area]) -> list[str]:
    with ThreadPoolExecutor(len(areas)) as pool:
        return list(pool.map(probe_health, [area.address for area in areas]))


def _status_of(area: Area, process: ProcessState | None, health: str) -> AreaStatus:
    if process is None:
        return AreaStatus(area.name, "DOWN", 0, area.address, health, 0.0)
    return AreaStatus(area.name, process.state, process.pid, area.address, health, process.uptime_s)
