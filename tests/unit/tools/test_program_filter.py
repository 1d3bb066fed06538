"""The filter, run by an interpreter of the kernel's few instructions that it uses."""

from __future__ import annotations

import struct

import pytest

from services.tools.core.builtin.program_filter import ARCHITECTURES, build_filter

ALLOW, EPERM, ENOSYS = 0x7FFF0000, 0x00050001, 0x00050026
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NUMBERS = {
    "x86_64": {"read": 0, "execve": 59, "socket": 41, "fork": 57, "ptrace": 101, "clone": 56, "umount2": 166},
    "aarch64": {"read": 63, "execve": 221, "socket": 198, "fork": 1079, "ptrace": 117, "clone": 220, "umount2": 39},
}
THREAD = 0x00010000


def verdict(machine, number, argument=0, architecture=None):
    data = struct.pack("<IIQQ", number, architecture or AUDIT[machine], 0, argument)
    lines = list(struct.iter_unpack("<HBBI", build_filter(machine)))
    value, position = 0, 0
    while True:
        code, if_true, if_false, operand = lines[position]
        position += 1
        if code == 0x06:
            return operand
        if code == 0x20:
            (value,) = struct.unpack_from("<I", data, operand)
            continue
        holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[code]
        position += if_true if holds else if_false


@pytest.mark.parametrize("machine", sorted(ARCHITECTURES))
def test_computing_is_allowed_and_reaching_out_is_not(machine):
    numbers = NUMBERS[machine]
    assert verdict(machine, numbers["read"]) == ALLOW
    assert verdict(machine, numbers["execve"]) == ALLOW
    for refused in ("socket", "ptrace", "umount2"):
        assert verdict(machine, numbers[refused]) == EPERM
    for io_uring in (425, 426, 427):
        assert verdict(machine, io_uring) == EPERM


@pytest.mark.parametrize("machine", sorted(ARCHITECTURES))
def test_threads_are_allowed_and_processes_are_not(machine):
    clone = NUMBERS[machine]["clone"]
    assert verdict(machine, clone, THREAD | 0xF00) == ALLOW
    assert verdict(machine, clone, 17) == EPERM
    assert verdict(machine, 435) == ENOSYS


@pytest.mark.parametrize("machine", sorted(ARCHITECTURES))
def test_other_architectures_are_refused(machine):
    assert verdict(machine, NUMBERS[machine]["read"], architecture=0x40000003) == EPERM
    assert verdict(machine, 0x40000000 + NUMBERS[machine]["read"]) == EPERM
