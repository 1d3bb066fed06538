"""Drops the rights of this process that no work needs, so that hostile input gains little from a library's bug.

The process gets no new privileges and cannot write to files. On Linux (x86-64, ARM64), a seccomp filter also answers
EPERM to system calls for sockets, other programs, signals and access to other processes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import signal
import sys

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_SECCOMP_MODE_FILTER = 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _NOT_BELOW, _RETURN = 0x20, 0x15, 0x35, 0x06  # BPF: load a word, compare it, return the verdict
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4  # offsets in struct seccomp_data
_X32_BIT = 0x40000000

# The architecture as the kernel names it in audits, and the numbers of the refused system calls: socket, socketpair,
# bind, listen, accept, connect; execve, execveat; kill, tkill, tgkill, pidfd_open, pidfd_send_signal; ptrace,
# process_vm_readv, process_vm_writev; unlink, rename, mkdir, link, symlink, chmod and chown, in all their forms; mount,
# bpf, perf_event_open, userfaultfd, keyctl, io_uring_setup.
_REFUSED: dict[str, tuple[int, tuple[int, ...]]] = {
    "x86_64": (
        0xC000003E,
        (
            *(41, 53, 49, 50, 43, 288, 42, 59, 322, 62, 200, 234, 434, 424, 101, 310, 311),
            *(87, 263, 82, 264, 316, 83, 258, 86, 265, 88, 266, 90, 91, 268, 92, 93, 94, 260),
            *(165, 321, 298, 323, 250, 425),
        ),
    ),
    "aarch64": (
        0xC00000B7,
        (
            *(198, 199, 200, 201, 202, 242, 203, 221, 281, 129, 130, 131, 434, 424, 117, 270, 271),
            *(35, 38, 276, 34, 37, 36, 52, 53, 54, 55),
            *(40, 280, 241, 282, 219, 425),
        ),
    ),
}


class _Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction))]


def confine() -> None:
    """Confine this thread and the threads that it starts. The confinement cannot be undone."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing to a file raises an error instead of ending the process
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stderr.fileno())  # libraries would write to stderr, which is for logs
    os.close(nowhere)
    if sys.platform == "linux":
        _confine_calls()


def _confine_calls() -> None:
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or platform.machine() not in _REFUSED:
        return
    instructions = _filter(*_REFUSED[platform.machine()])
    array = (_Instruction * len(instructions))(*instructions)
    program = _Program(len(instructions), array)
    prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)


def _filter(architecture: int, refused: tuple[int, ...]) -> list[_Instruction]:
    """Return a BPF program that refuses these system calls, and every call of another architecture."""
    checks = [(_EQUAL, number) for number in refused] + [(_NOT_BELOW, _X32_BIT)]
    count = len(checks)
    return [
        _Instruction(_LOAD, 0, 0, _ARCHITECTURE_AT),
        _Instruction(_EQUAL, 0, count + 2, architecture),
        _Instruction(_LOAD, 0, 0, _NUMBER_AT),
        *(_Instruction(code, count - position, 0, number) for position, (code, number) in enumerate(checks)),
        _Instruction(_RETURN, 0, 0, _ALLOW),
        _Instruction(_RETURN, 0, 0, _ERRNO | errno.EPERM),
    ]
