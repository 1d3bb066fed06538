"""Drops unneeded rights of this process, so that hostile input gains little from a library's bug.

1. The process cannot gain privileges, and does not leave a core dump. Other processes of its user cannot read its
   memory.
2. It cannot write to files, because RLIMIT_FSIZE is 0 and, on Linux, opening a file for writing is refused.
3. A seccomp filter (Linux on x86-64 and ARM64) answers EPERM to system calls for sockets, other programs, signals, and
   access to the memory, the descriptors, the limits and the machine share of other processes.
4. Landlock (Linux 5.13) permits reading only Python, its packages and the folders of the work. It also refuses `/proc`
   of other processes, so that the environment and the memory of the service stay out of reach. On a system without
   Landlock, `protect_memory` of the service has this effect, but workers can read the files of its user.

The rules apply to threads that start later. `confine` must therefore precede the import of the modules that do the
work: some libraries start threads on import, and an exploited thread without confinement could do anything.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import signal
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 4, 22, 38
_SECCOMP_MODE_FILTER = 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
# BPF instructions: load a word, compare it, test its bits, and return the verdict.
_LOAD, _EQUAL, _NOT_BELOW, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16  # Offsets in struct seccomp_data.
_X32_BIT = 0x40000000
_ANY_BIT = 0xFFFFFFFF
_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

# The architecture as the kernel names it in audits, and the numbers of the refused system calls: socket, socketpair,
# bind, listen, accept, connect; execve, execveat; kill, tkill, tgkill, pidfd_open, pidfd_send_signal, pidfd_getfd;
# ptrace, process_vm_readv, process_vm_writev, process_madvise, kcmp, move_pages, migrate_pages; setpriority,
# sched_setparam, sched_setscheduler, sched_setattr, ioprio_set; unlink, rename, mkdir, link, symlink, chmod, chown and
# creat, in all their forms; truncate, openat2; mount, bpf, perf_event_open, userfaultfd, keyctl, io_uring_setup.
_REFUSED: dict[str, tuple[int, tuple[int, ...]]] = {
    "x86_64": (
        0xC000003E,
        (
            *(41, 53, 49, 50, 43, 288, 42, 59, 322, 62, 200, 234, 434, 424, 438),
            *(101, 310, 311, 440, 312, 279, 256, 141, 142, 144, 314, 251),
            *(87, 263, 82, 264, 316, 83, 258, 86, 265, 88, 266, 90, 91, 268, 92, 93, 94, 260, 85),
            *(76, 437, 165, 321, 298, 323, 250, 425),
        ),
    ),
    "aarch64": (
        0xC00000B7,
        (
            *(198, 199, 200, 201, 202, 242, 203, 221, 281, 129, 130, 131, 434, 424, 438),
            *(117, 270, 271, 440, 272, 239, 238, 140, 118, 119, 274, 30),
            *(35, 38, 276, 34, 37, 36, 52, 53, 54, 55),
            *(45, 437, 40, 280, 241, 282, 219, 425),
        ),
    ),
}
# System calls that are refused for some values of an argument: the number, the argument, and the bits that no permitted
# value has. They are prlimit64 and sched_setaffinity of another process, and open and openat to write.
_REFUSED_VALUES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "x86_64": ((302, 0, _ANY_BIT), (203, 0, _ANY_BIT), (2, 1, _TO_WRITE), (257, 2, _TO_WRITE)),
    "aarch64": ((261, 0, _ANY_BIT), (122, 0, _ANY_BIT), (56, 2, _TO_WRITE)),
}

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
# The number of file rights in each version of Landlock's interface. Later versions have the last listed number.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_SYSTEM_FOLDERS = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/share/zoneinfo", "/sys/devices/system/cpu")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types", "/proc/cpuinfo", "/proc/meminfo")


class _Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction))]


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("rights", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def confine(folders: Iterable[str] = ()) -> bool:
    """Confine this thread and the threads that it starts. The confinement cannot be undone.

    `folders` are the folders whose files may be read, in addition to Python and its packages. Returns whether Landlock
    is in force.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # Writing to a file raises an error instead of ending the process.
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stderr.fileno())  # Libraries would write to stderr, which is for logs.
    os.close(nowhere)
    if sys.platform != "linux":
        return False
    system = ctypes.CDLL(None, use_errno=True)
    system.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    if system.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    is_restricted = _restrict_files(system, [*_python_folders(), *folders])
    _refuse_calls(system)
    return is_restricted


def _python_folders() -> Iterator[str]:
    """Yield the folders of Python, of the installed packages and of the imported packages.

    The current folder and the root of a checkout are excluded, although they may contain modules.
    """
    yield from (sys.prefix, sys.base_prefix, *_SYSTEM_FOLDERS)
    yield from filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    for entry in sys.path:
        if Path(entry).name in {"site-packages", "dist-packages"}:
            yield entry
    for name, module in list(sys.modules.items()):
        if "." not in name:
            yield from getattr(module, "__path__", ())


def _restrict_files(system: ctypes.CDLL, folders: Iterable[str]) -> bool:
    """Permit this thread to read these folders and Python's system files. Returns False without Landlock."""
    version = system.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG)
    if version < 1:
        return False
    refused = ctypes.c_uint64((1 << _FILE_RIGHTS[min(version, max(_FILE_RIGHTS))]) - 1)
    ruleset = system.syscall(_CREATE_RULESET, ctypes.byref(refused), ctypes.c_size_t(ctypes.sizeof(refused)), 0)
    if ruleset < 0:
        return False
    try:
        for path in dict.fromkeys((*folders, *_SYSTEM_FILES)):
            _permit_reading(system, ruleset, path)
        return bool(system.syscall(_RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _permit_reading(system: ctypes.CDLL, ruleset: int, path: str) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # Many systems lack one of these paths.
        return
    rights = _READ_FILE
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        rights |= _READ_DIR
    rule = _PathRule(rights, descriptor)
    system.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    os.close(descriptor)


def _refuse_calls(system: ctypes.CDLL) -> None:
    machine = platform.machine()
    if machine not in _REFUSED:
        return
    instructions = _filter(*_REFUSED[machine], _REFUSED_VALUES[machine])
    array = (_Instruction * len(instructions))(*instructions)
    program = _Program(len(instructions), array)
    system.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)


def _filter(
    architecture: int, refused: tuple[int, ...], refused_values: tuple[tuple[int, int, int], ...]
) -> list[_Instruction]:
    """Return a BPF program that refuses these system calls, and every call of another architecture.

    Each step names the next steps for a comparison that holds and for a comparison that fails. The last two
    instructions are the verdicts: permit, and refuse.
    """
    values = [
        instruction
        for number, argument, bits in refused_values
        for instruction in (
            (_EQUAL, number, "next", "skip"),
            (_LOAD, _ARGUMENTS_AT + 8 * argument, "next", "next"),
            (_HAS_BITS, bits, "refuse", "permit"),
        )
    ]
    steps = [
        (_LOAD, _ARCHITECTURE_AT, "next", "next"),
        (_EQUAL, architecture, "next", "refuse"),
        (_LOAD, _NUMBER_AT, "next", "next"),
        *((_EQUAL, number, "refuse", "next") for number in refused),
        (_NOT_BELOW, _X32_BIT, "refuse", "next"),
        *values,
    ]
    count = len(steps)
    program = []
    for position, (code, operand, *jumps) in enumerate(steps):
        left = count - position - 1
        distances = {"next": 0, "skip": 2, "permit": left, "refuse": left + 1}
        program.append(_Instruction(code, *(distances[jump] for jump in jumps), operand))
    return [*program, _Instruction(_RETURN, 0, 0, _ALLOW), _Instruction(_RETURN, 0, 0, _ERRNO | errno.EPERM)]
