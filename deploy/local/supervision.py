"""Configures, starts, controls and stops the supervisord of a state folder.

Commands reach the supervisor over a unix socket that only this user can open, not over a TCP port. The socket is in
the temporary folder, because its path is limited to about 100 bytes and a state folder may be anywhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import subprocess
import tempfile
import time
import xmlrpc.client
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psutil
from supervisor.xmlrpc import SupervisorTransport

from deploy.local.areas import GATEWAY, Area
from deploy.local.child import OWNER_VARIABLE, owner_options
from pagantic_common.run import command

LEFTOVER_WAIT_S = 20.0
_MODULE = "services."
_GATEWAY = "gateway.cli.main"  # The module of the gateway. Commands that users type run as the `pagantic` program.
STOP_WAIT_S = 20
LOCK_POLL_S = 0.2
SHUTDOWN_DEADLINE_S = 60.0
TAIL_LINES = 20
_STARTED = ("STARTING", "RUNNING")

_HEAD = """\
[supervisord]
umask=077
logfile=%(here)s/logs/supervisord.log
logfile_maxbytes=5MB
logfile_backups=1
pidfile=%(here)s/supervisord.pid
childlogdir=%(here)s/logs
{user}
[unix_http_server]
file={socket}
chmod=0600

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
"""

# A service is restarted after an exit, except with exit code 78, which means invalid configuration.
_PROGRAM = """
[program:{name}]
command={child} {arguments}
stdout_logfile=%(here)s/logs/{name}.log
stdout_logfile_maxbytes=10MB
stdout_logfile_backups=2
redirect_stderr=true
autorestart=unexpected
exitcodes=78
startsecs=1
startretries=2
stopsignal=TERM
stopwaitsecs={stop_wait_s}
killasgroup=true
"""

# Groups stop one after another, the last first, so the orchestrator ends its requests while other services still run.
_GROUPS = """
[group:inner]
programs={inner}
priority=1

[group:edge]
programs=orchestrator
priority=2
"""
_DOOR = """
[group:door]
programs=http
priority=3
"""


class SupervisionError(Exception):
    """Supervisord cannot be started or stopped. The message gives the reason."""


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The state of a service as supervisord reports it."""

    name: str
    state: str
    pid: int
    uptime_s: float
    problem: str

    @property
    def has_failed(self) -> bool:
        """Whether the service has ended or never started."""
        return self.state not in _STARTED


class Supervision:
    """The supervisord of a state folder."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.logs = state / "logs"
        self._config = state / "supervisord.conf"
        self._pid_file = state / "supervisord.pid"
        key = hashlib.sha256(os.fsencode(state)).hexdigest()[:12]
        self._socket_folder = Path(tempfile.gettempdir()) / f"pagantic-{os.getuid()}-{key}"
        self._socket = self._socket_folder / "s"
        self._log_starts: dict[str, int] = {}

    def make_folders(self) -> None:
        """Create the folders for state and logs. Raises SupervisionError if they cannot be written."""
        if "%" in str(self.state):
            raise SupervisionError(f"the state folder's path has a '%', which supervisord cannot take: {self.state}")
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            writable = os.access(self.state, os.W_OK) and os.access(self.logs, os.W_OK)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise SupervisionError(
                f"the state folder {self.state} cannot be made ({reason}): set PAGANTIC_STATE to one that can"
            ) from None
        if not writable:
            raise SupervisionError(f"the state folder {self.state} cannot be written: set PAGANTIC_STATE to another")

    @contextlib.contextmanager
    def starting(self, wait: Callable[[], None]) -> Iterator[None]:
        """Hold the lock for starting a system in this folder. `wait` is called while another command holds the lock."""
        with (self.state / "lock").open("a", encoding="ascii") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    wait()
                    time.sleep(LOCK_POLL_S)
            yield

    def start(self, areas: tuple[Area, ...], environment: Mapping[str, str]) -> int:
        """Start supervisord, which starts the services, and return its pid. Supervisord outlives this process."""
        self.make_folders()
        self._log_starts = {area.name: _size_of(self._log(area.name)) for area in areas}
        self._make_socket_folder()
        self._config.write_text(self._render(areas), encoding="utf-8")
        done = subprocess.run(
            command("supervisor.supervisord", "-c", str(self._config)),
            env={**environment, OWNER_VARIABLE: str(self.state)},
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        if done.returncode != 0:
            raise SupervisionError(f"supervisord does not start: {(done.stderr or done.stdout).strip()}")
        deadline_s = time.monotonic() + 10
        while not (self.is_running() and self.daemon_pid()):
            if time.monotonic() > deadline_s:
                raise SupervisionError(f"supervisord does not answer: see {self.logs / 'supervisord.log'}")
            time.sleep(0.05)
        return self.daemon_pid()

    def is_running(self) -> bool:
        """Return whether supervisord responds."""
        try:
            self._call("getState")
        except (OSError, xmlrpc.client.Error):
            return False
        return True

    def processes(self) -> dict[str, ProcessState]:
        """Return the state of each service, or an empty mapping if supervisord does not respond."""
        try:
            infos = cast("list[dict[str, Any]]", self._call("getAllProcessInfo"))
        except (OSError, xmlrpc.client.Error):
            return {}
        return {info["name"]: _process_state(info) for info in infos}

    def stop(self, progress: Callable[[float], None]) -> None:
        """Stop the services and supervisord, and wait until they end. Raises SupervisionError if they do not end."""
        daemon = self._daemon()
        try:
            self._call("shutdown")
        except (OSError, xmlrpc.client.Error):
            if daemon is not None:
                daemon.terminate()
        started_s = time.monotonic()
        while daemon is not None and daemon.is_running() and daemon.status() != psutil.STATUS_ZOMBIE:
            waited_s = time.monotonic() - started_s
            if waited_s > SHUTDOWN_DEADLINE_S:
                raise SupervisionError(
                    f"supervisord (pid {daemon.pid}) did not stop within {SHUTDOWN_DEADLINE_S:.0f} s"
                )
            progress(waited_s)
            time.sleep(0.1)
        self._socket.unlink(missing_ok=True)
        self._pid_file.unlink(missing_ok=True)
        if self._socket_folder.is_dir() and not self._socket_folder.is_symlink():
            with contextlib.suppress(FileNotFoundError):  # Another command may have removed the file.
                self._socket_folder.rmdir()

    def stop_leftovers(self, wait: Callable[[], None]) -> list[str]:
        """Stop the services of a dead supervisor, and return their names. `wait` is called while they drain."""
        return stop_leftovers(self.state, self.daemon_pid(), wait)

    def log_tail(self, name: str) -> str:
        """Return the last lines of a service's log, excluding lines from before this object started the service."""
        try:
            content = self._log(name).read_bytes()
        except OSError:
            return ""
        start = self._log_starts.get(name, 0)
        if start > len(content):  # The log was rotated.
            start = 0
        text = content[start:].decode(errors="replace")
        return "\n".join(text.splitlines()[-TAIL_LINES:])

    def daemon_pid(self) -> int:
        """Return the pid of supervisord, even if its socket is missing, or 0 if it is not running."""
        daemon = self._daemon()
        if daemon is None:
            return 0
        return daemon.pid

    def _log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def _daemon(self) -> psutil.Process | None:
        try:
            process = psutil.Process(int(self._pid_file.read_text(encoding="ascii")))
            argv = process.cmdline()
        except (OSError, ValueError, psutil.Error):
            return None
        if "supervisor.supervisord" not in argv or str(self._config) not in argv:
            return None
        return process

    def _call(self, method: str) -> Any:
        transport = SupervisorTransport(None, None, f"unix://{self._socket}")
        try:
            server = xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport)
            return getattr(server.supervisor, method)()
        finally:
            transport.close()

    def _make_socket_folder(self) -> None:
        self._socket_folder.mkdir(mode=0o700, exist_ok=True)
        info = self._socket_folder.lstat()
        if self._socket_folder.is_symlink() or info.st_uid != os.getuid() or info.st_mode & 0o077:
            raise SupervisionError(f"{self._socket_folder} is not a folder that only this user can open: remove it")

    def _render(self, areas: tuple[Area, ...]) -> str:
        user = ""
        if os.geteuid() == 0:
            user = "user=root\n"  # Without this line, supervisord prints a warning if root starts it.
        child = shlex.join(command("deploy.local.child")).replace("%", "%%")
        socket = str(self._socket).replace("%", "%%")
        address_of = {area.name: area.address for area in areas}
        arguments = {**{name: name for name in address_of}, GATEWAY: f"{GATEWAY} {address_of['orchestrator']}"}
        programs = [
            _PROGRAM.format(name=name, arguments=arguments[name], child=child, stop_wait_s=STOP_WAIT_S)
            for name in address_of
        ]
        groups = _GROUPS.format(inner=",".join(sorted(address_of.keys() - {"orchestrator", GATEWAY})))
        if GATEWAY in address_of:
            groups += _DOOR
        return _HEAD.format(user=user, socket=socket) + "".join(programs) + groups


def _size_of(path: Path) -> int:
    if not path.is_file():
        return 0
    return path.stat().st_size


def _process_state(info: Mapping[str, Any]) -> ProcessState:
    uptime_s = 0.0
    if info["statename"] == "RUNNING":
        uptime_s = float(max(0, info["now"] - info["start"]))
    problem = info["spawnerr"]
    if not problem and info["exitstatus"]:
        problem = f"exit status {info['exitstatus']}"
    return ProcessState(info["name"], info["statename"], info["pid"], uptime_s, problem)


def stop_leftovers(state: Path, daemon_pid: int, wait: Callable[[], None]) -> list[str]:
    """Stop the services of a state folder that are not children of its supervisor, and return their names.

    `daemon_pid` is 0 without a supervisor. `wait` is called repeatedly while the services drain.
    """
    services = [process for process in psutil.process_iter(["cmdline"]) if _is_leftover(process, state, daemon_pid)]
    names = [_name(process) for process in services]
    for process in services:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    started_s = time.monotonic()
    while alive := psutil.wait_procs(services, timeout=0.2)[1]:
        wait()
        if time.monotonic() - started_s > LEFTOVER_WAIT_S:
            _kill(alive)
    return names


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _is_leftover(process: psutil.Process, state: Path, daemon_pid: int) -> bool:
    try:
        is_ours = bool(_name(process)) and owner_options(str(state))[1] in process.info["cmdline"]
        return is_ours and process.ppid() != daemon_pid
    except psutil.Error:
        return False


def _name(process: psutil.Process) -> str:
    argv = process.info["cmdline"] or []
    if _GATEWAY in argv:
        return "http"
    return next((part.removeprefix(_MODULE) for part in argv if part.startswith(_MODULE) and "." not in part[9:]), "")
