"""The seccomp filter of sandboxed programs, as bytes for the kernel. It refuses system calls that no computation needs.

A program may start threads but not processes, so processes cannot multiply. It has no sockets and no keyrings, cannot
reach other processes, and cannot create namespaces. The filter permits mounting, because the sandbox itself mounts
under it, but a program lacks the right to mount.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from typing import Final

_LOAD, _EQUAL, _NOT_BELOW, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16  # offsets in struct seccomp_data; little endian
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_X32_BIT: Final = 0x40000000
_CLONE_THREAD: Final = 0x00010000


@dataclass(frozen=True, slots=True)
class _Calls:
    """The system call numbers of an architecture."""

    architecture: int
    clone: int
    refused: tuple[int, ...]


# On both architectures: pidfd_send_signal, io_uring_*, open_tree to fspick, pidfd_open, pidfd_getfd, process_madvise,
# mount_setattr, memfd_secret, process_mrelease.
_SINCE_2019: Final = (424, 425, 426, 427, 428, 429, 430, 431, 432, 433, 434, 438, 440, 442, 447, 448)
_CLONE3: Final = 435
_CALLS: Final[dict[str, _Calls]] = {
    # fork, vfork; socket to socketpair, accept4, sendmmsg; kill, tkill, ptrace, process_vm_*, kcmp; keyrings; bpf,
    # perf_event_open, userfaultfd; umount2, pivot_root, chroot, unshare, setns, name_to_handle_at,
    # open_by_handle_at; modules, kexec, reboot, swap, quota, accounting, clocks, hostname, syslog, personality;
    # memfd_create; message queues, semaphores and shared memory of System V and POSIX; ioperm, iopl, modify_ldt.
    "x86_64": _Calls(
        0xC000003E,
        56,
        (
            *(57, 58, *range(41, 56), 288, 299, 307, 62, 200, 101, 310, 311, 312, 248, 249, 250, 321, 298, 323),
            *(166, 155, 161, 272, 308, 303, 304, 174, 175, 176, 313, 246, 320, 169, 167, 168, 179, 163),
            *(164, 227, 159, 305, 170, 171, 103, 135, 319, *range(240, 246), *range(29, 32), *range(64, 72)),
            *(220, 67, 172, 173, 154, 129, 297),
        ),
    ),
    "aarch64": _Calls(
        0xC00000B7,
        220,
        (
            *(*range(198, 213), 242, 243, 269, 129, 130, 117, 270, 271, 272, 217, 218, 219, 280, 241, 282),
            *(39, 41, 51, 97, 268, 264, 265, 105, 106, 273, 104, 294, 142, 224, 225, 60, 89, 170, 112, 171),
            *(266, 161, 162, 116, 92, 279, *range(180, 198), 138, 240),
        ),
    ),
}
ARCHITECTURES: Final = frozenset(_CALLS)


def build_filter(machine: str) -> bytes:
    """Return the filter for a machine of ARCHITECTURES. It returns EPERM for refused calls and other architectures."""
    calls = _CALLS[machine]
    refused = sorted({*calls.refused, *_SINCE_2019})
    # Each check jumps to the verdict EPERM at the end, over the number of instructions in between.
    checks = [(_EQUAL, number) for number in refused] + [(_NOT_BELOW, _X32_BIT)]
    after = 5  # instructions from the check for clone3 to the check of clone's flags; ALLOW and EPERM follow
    lines = [(_LOAD, 0, 0, _ARCHITECTURE_AT), (_EQUAL, 1, 0, calls.architecture), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    lines.append((_LOAD, 0, 0, _NUMBER_AT))
    for position, (code, number) in enumerate(checks):
        lines.append((code, len(checks) - position - 1 + after + 1, 0, number))
    lines += [
        (_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),  # the C library falls back to clone, whose flags are readable
        (_EQUAL, 0, 2, calls.clone),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (_HAS_BITS, 0, 1, _CLONE_THREAD),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
    ]
    return b"".join(struct.pack("<HBBI", *line) for line in lines)
