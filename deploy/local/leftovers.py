"""Finds and stops services of a dead supervisor, by the variable that names their state folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

OWNER_VARIABLE = "PAGANTIC_SUPERVISED_FROM"
STOP_WAIT_S = 20.0
_MODULE = "services."
_GATEWAY = "gateway.cli.main"  # commands that users type run as the program `pagantic`


def stop_leftovers(state: Path, daemon_pid: int, wait: Callable[[], None]) -> list[str]:
    """Stop the services of a state folder that are not children of its supervisor, and return their names.

    `daemon_pid` is 0 without a supervisor; `wait` is called again and again while the services drain.
    """
    services = [process for process in psutil.process_iter(["cmdline"]) if _is_leftover(process, state, daemon_pid)]
    names = [_name(process) for process in services]
    for process in services:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    started_s = time.monotonic()
    while alive := psutil.wait_procs(services, timeout=0.2)[1]:
        wait()
        if time.monotonic() - started_s > STOP_WAIT_S:
            _kill(alive)
    return names


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _is_leftover(process: psutil.Process, state: Path, daemon_pid: int) -> bool:
    try:
        is_ours = bool(_name(process)) and process.environ().get(OWNER_VARIABLE) == str(state)
        return is_ours and process.ppid() != daemon_pid
    except psutil.Error:
        return False


def _name(process: psutil.Process) -> str:
    command = process.info["cmdline"] or []
    if _GATEWAY in command:
        return "http"
    return next(
        (part.removeprefix(_MODULE) for part in command if part.startswith(_MODULE) and "." not in part[9:]), ""
    )
