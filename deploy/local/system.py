"""Starts and stops the whole system on this machine, and shows its state."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TextIO

import psutil

from deploy.local import record
from deploy.local.areas import (
    DEFAULT_START_LIMIT_S,
    GATEWAY,
    START_LIMIT_VARIABLE,
    Area,
    child_environment,
    read_areas,
    read_gateway,
    read_start_limit,
)
from deploy.local.known_settings import check_names, check_values
from deploy.local.probing import find_taken_ports, probe_area
from deploy.local.supervision import ProcessState, Supervision, SupervisionError
from pagantic_common.settings import state_folder

FIRST_LINE_S = 2.0
LINE_INTERVAL_S = 30.0
REWRITE_INTERVAL_S = 0.2
POLL_INTERVAL_S = 0.2
ACTIVITY_INTERVAL_S = 1.0
WORKING_CPU_RATIO = 0.1
WORKING_BYTES = 1024 * 1024
HOST_STOP_S = 60.0


class Progress:
    """A wait that begins when this object is created. Use it as a context manager, which clears the terminal line."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._started_s = time.monotonic()
        self._next_s = FIRST_LINE_S
        if self._stream.isatty():
            self._next_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream.isatty():
            self._write("\r\x1b[K")

    @property
    def waited_s(self) -> float:
        """Seconds since the start of the wait."""
        return time.monotonic() - self._started_s

    def show(self, text: str) -> None:
        """Show the reason for the wait. The method may be called often."""
        waited_s = self.waited_s
        if waited_s < self._next_s:
            return
        if self._stream.isatty():
            self._next_s = waited_s + REWRITE_INTERVAL_S
            self._write(f"\r\x1b[K{waited_s:3.0f} s  {text}"[: _columns()])
        else:
            self._next_s = waited_s + LINE_INTERVAL_S
            self._write(f"{waited_s:3.0f} s  {text}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _columns() -> int:
    return shutil.get_terminal_size().columns + len("\r\x1b[K") - 1


class StartFailed(Exception):
    """The system did not start. The message gives the reason, and no service of this start is left running."""


@dataclass(frozen=True, slots=True)
class AreaStatus:
    """The state of a service."""

    name: str
    state: str
    pid: int
    address: str
    health: str
    uptime_s: float

    @property
    def is_serving(self) -> bool:
        """Whether the service runs and is healthy."""
        return self.health == "SERVING" and self.state == "RUNNING"


class LocalSystem:
    """All services of a state folder. Raises ConfigurationError if the environment contains invalid values."""

    def __init__(self) -> None:
        self.supervision = Supervision(state_folder().resolve())
        self.record = record.load(self.supervision.state)
        if self.record is not None:
            self.areas, self.doors = self.record.areas, self.record.doors
        else:
            self.areas, self.doors = read_areas(), read_gateway()
        self._start_limit_s = DEFAULT_START_LIMIT_S

    @property
    def state(self) -> Path:
        """The state folder."""
        return self.supervision.state

    def is_up(self) -> bool:
        """Return whether the supervisor or host is running, even if services are not."""
        return self.supervision.is_running() or (self.record is not None and self.record.is_host)

    def start(self) -> bool:
        """Start every service and wait until all are ready. Return False if the system is already up.

        Raises ConfigurationError for an unknown setting or an invalid value. If the start fails, the method stops the
        services again and raises StartFailed.
        """
        if self.record is None:
            check_names(os.environ)
            check_values(os.environ)
        self._start_limit_s = read_start_limit()
        self.supervision.make_folders()
        with Progress() as progress, self.supervision.starting(lambda: progress.show("waiting for another `up`")):
            self.record = record.load(self.state)
            if self.is_up():
                if self.record is not None:
                    self.areas, self.doors = self.record.areas, self.record.doors
                return False
            self._start(progress)
        took = f"{len(self._programs)} services are ready after {progress.waited_s:.1f} s"
        print(f"up: {took}; state in {self.state}", flush=True)
        for door in self.doors:
            print(f"HTTP on http://{door.address}", flush=True)
        return True

    def _start(self, progress: Progress) -> None:
        if self.supervision.daemon_pid():
            raise StartFailed("a supervisor of this state folder runs but does not answer: run `pagantic down` first")
        self._stop_leftovers(progress)
        if problems := find_taken_ports(self._programs):
            raise StartFailed("\n".join(problems))
        pid = 0
        try:
            pid = self.supervision.start(self._programs, child_environment(self.areas, self.state, os.environ))
            record.save(self.state, pid, self.areas, os.environ, is_host=False, doors=self.doors)
            self._wait_until_ready(progress)
        except BaseException as error:
            if not pid or self.supervision.daemon_pid() == pid:  # No other command has replaced the supervisor.
                self._stop_supervised(progress)
            if isinstance(error, SupervisionError):
                raise StartFailed(str(error)) from None
            raise

    def check_same_settings(self) -> None:
        """Raise StartFailed if the environment's settings differ from those of the running system."""
        if self.record is not None and (differing := self.record.differing(os.environ)):
            raise StartFailed(f"already up, with other settings: {', '.join(differing)}; run `pagantic down` first")

    def stop(self) -> bool:
        """Stop every service and wait until all have ended. Returns False if no service was running.

        Raises SupervisionError if a service does not end.
        """
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
        programs = self._programs
        answers = _probe_all(programs)
        return [
            _status_of(area, processes.get(area.name), health) for area, health in zip(programs, answers, strict=True)
        ]

    @property
    def _programs(self) -> tuple[Area, ...]:
        """The programs that the supervisor runs: the services and, if the settings request it, the HTTP gateway."""
        return (*self.areas, *self.doors)

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
                progress.show("stopping: host")
                time.sleep(POLL_INTERVAL_S)
        record.forget(self.state)

    def _stop_supervised(self, progress: Progress) -> None:
        def show(_waited_s: float) -> None:
            remaining_names = [process.name for process in self.supervision.processes().values() if process.pid]
            progress.show(f"stopping: {' '.join(remaining_names) or 'supervisor'}")

        self.supervision.stop(show)
        record.forget(self.state)

    def _stop_leftovers(self, progress: Progress) -> bool:
        def wait() -> None:
            progress.show("stopping the services of a dead supervisor")

        names = self.supervision.stop_leftovers(wait)
        if names:
            print(f"stopped the services of a dead supervisor: {' '.join(sorted(names))}", flush=True)
        return bool(names)

    def _wait_until_ready(self, progress: Progress) -> None:
        first_pids: dict[str, int] = {}
        activity = _Activity()
        # The gateway waits for the orchestrator, which waits for the other services, so both come last in messages.
        areas = sorted(self._programs, key=lambda area: (area.name == GATEWAY, area.name == "orchestrator"))
        processes = self._check_processes(first_pids)
        while areas := _not_serving(areas):
            texts = [self._describe_wait(area.name) for area in areas]
            activity.note(texts, [processes[area.name].pid for area in areas if area.name in processes])
            if activity.idle_s > self._start_limit_s:
                raise StartFailed(self._describe_timeout(areas))
            progress.show(f"waiting: {'; '.join(texts)}")
            time.sleep(POLL_INTERVAL_S)
            processes = self._check_processes(first_pids)
        self._check_processes(first_pids)

    def _describe_timeout(self, areas: Sequence[Area]) -> str:
        names = " ".join(area.name for area in areas)
        tails = "\n".join(self._describe_end(area.name, "its log ends with") for area in areas)
        return (
            f"not ready, and without activity for {self._start_limit_s:.0f} s: {names}\n{tails}\n"
            f"if it only takes longer, raise {START_LIMIT_VARIABLE}"
        )

    def _check_processes(self, first_pids: dict[str, int]) -> dict[str, ProcessState]:
        processes = self.supervision.processes()
        if not processes:
            log = self.supervision.logs / "supervisord.log"
            raise StartFailed(f"the supervisor is gone: another command has stopped it, or {log} has the reason")
        for process in processes.values():
            was_restarted = process.pid and first_pids.setdefault(process.name, process.pid) != process.pid
            if process.has_failed or was_restarted:
                end = "ended while starting"
                if process.problem:
                    end += f" ({process.problem})"
                raise StartFailed(self._describe_end(process.name, end))
        return processes

    def _describe_wait(self, name: str) -> str:
        """Return a service's name and the last event in its log."""
        last = _last_entry(self.supervision.log_tail(name))
        event = last.get("reason") or last.get("event")
        if not event:
            return name
        if "size_mb" in last:
            return f"{name}: {event} {last['size_mb']} MB"
        return f"{name}: {event}"

    def _describe_end(self, name: str, what: str) -> str:
        tail = self.supervision.log_tail(name)
        lines = "\n".join(f"  | {line}" for line in tail.splitlines()) or "  | (its log is empty)"
        return f"the {name} service: {what}\n{lines}"


class _Activity:
    """Tracks the time since starting services last showed activity: log entries, processor time or memory changes."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._noted_s = -math.inf
        self._active_s = time.monotonic()
        self._cpu_s = 0.0
        self._bytes = 0.0

    @property
    def idle_s(self) -> float:
        """Seconds since the last activity."""
        return time.monotonic() - self._active_s

    def note(self, texts: list[str], pids: Sequence[int]) -> None:
        """Compare the services with the previous note to detect activity. At most one note per second counts."""
        now_s = time.monotonic()
        if now_s - self._noted_s < ACTIVITY_INTERVAL_S:
            return
        cpu_s, size = _used(pids)
        has_worked = cpu_s - self._cpu_s > WORKING_CPU_RATIO * min(now_s - self._noted_s, ACTIVITY_INTERVAL_S)
        if texts != self._texts or has_worked or abs(size - self._bytes) > WORKING_BYTES:
            self._active_s = now_s
        self._texts = texts
        self._noted_s = now_s
        self._cpu_s = cpu_s
        self._bytes = size


def _used(pids: Sequence[int]) -> tuple[float, float]:
    cpu_s = size = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            for member in (process, *process.children(recursive=True)):
                cpu_s += sum(member.cpu_times()[:2])
                size += member.memory_info().rss
    return cpu_s, size


def _last_entry(log: str) -> dict[str, Any]:
    """Return the last line of a JSON log as an object, or an empty object for an empty log or a text log."""
    try:
        entry = json.loads(log.splitlines()[-1])
    except (IndexError, ValueError):
        return {}
    if not isinstance(entry, dict):
        return {}
    return entry


def _not_serving(areas: Sequence[Area]) -> list[Area]:
    return [area for area, health in zip(areas, _probe_all(areas), strict=True) if health != "SERVING"]


def _probe_all(areas: Sequence[Area]) -> list[str]:
    with ThreadPoolExecutor(len(areas)) as pool:
        return list(pool.map(probe_area, areas))


def _status_of(area: Area, process: ProcessState | None, health: str) -> AreaStatus:
    if process is None:
        return AreaStatus(area.name, "DOWN", 0, area.address, health, 0.0)
    return AreaStatus(area.name, process.state, process.pid, area.address, health, process.uptime_s)
