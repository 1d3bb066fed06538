"""Hosts as network namespaces on one switch, with a DNS that changes while they run."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.killing import wait_until

IP = "ip"
PROGRAMS = (IP, "unshare")
NETNS = Path("/etc/netns")
DNS_BYTES = 4096
GONE_S = 10.0
FIRST = 10  # the last part of the first address that nobody asked for


def why_not():
    """Return why this machine cannot have such hosts; empty if it can."""
    if os.uname().sysname != "Linux" or not all(map(shutil.which, PROGRAMS)):
        return f"network namespaces need Linux with the programs {' and '.join(PROGRAMS)}"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with networked("try"):
            return ""
    except (AssertionError, OSError) as error:
        return f"network namespaces cannot be made here: {error}"


def ip(*words):
    done = subprocess.run([IP, *words], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr.strip()}"
    return done.stdout


@contextmanager
def networked(name):
    """Give a network of that name and this process; all of it is gone afterwards, and every process in it."""
    prefix = f"{name}{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix=f"pagantic-{prefix}-") as folder:
        Path(folder).chmod(0o711)  # PostgreSQL has a user of its own
        try:
            yield Network(prefix, Path(folder))
        finally:
            remove_all(prefix)


def remove_all(prefix):
    """Kill what runs in the hosts whose names begin so, and remove them.

    Those that were made within a host have left only their names here.
    """
    names = [line.split()[0] for line in ip("netns", "list").splitlines() if line.startswith(f"{prefix}-")]
    for name in names:
        kill_within(name)
    for name in names:
        ip("netns", "delete", name)
        shutil.rmtree(NETNS / name, ignore_errors=True)


def kill_within(name):
    """SIGKILL every process of a host, and return when they are gone."""

    def is_empty():
        pids = [int(pid) for pid in ip("netns", "pids", name).split() if int(pid) != os.getpid()]
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return not pids

    wait_until(is_empty, f"the processes of {name} are gone", GONE_S)


class Network:
    """The switch and its hosts. The names of one file are known in all of them.

    Args:
        prefix: The beginning of the hosts' names.
        folder: Where the file is.
    """

    def __init__(self, prefix, folder, *, is_new=True):
        self.prefix = prefix
        self.folder = folder
        self._switch = f"{prefix}-switch"
        self._dns = folder / "hosts"
        self._numbers = itertools.count(FIRST)
        if not is_new:
            return
        self.publish({})
        ip("netns", "add", self._switch)
        ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self._switch, "link", "set", "bridge", "up")

    def publish(self, names: Mapping[str, Sequence[str]]):
        """Let the DNS have these addresses of each name, and no others."""
        lines = ["127.0.0.1 localhost"]
        lines += [f"{address} {name}" for name, addresses in names.items() for address in addresses]
        # Always as long and written at once: whoever reads sees the old or the new.
        text = "\n".join(lines).encode().ljust(DNS_BYTES - 1) + b"\n"
        descriptor = os.open(self._dns, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(descriptor, text, 0)
        finally:
            os.close(descriptor)

    def add_host(self, role, number=None):
        """Return a new host with the next address, or with one that another had."""
        number = number or next(self._numbers)
        name, address = f"{self.prefix}-{role}-{number}", f"10.77.{number >> 8}.{number & 255}"
        port, card = f"port{number}", f"02:00:0a:4d:{number >> 8:02x}:{number & 255:02x}"
        (NETNS / name).mkdir(parents=True)
        (NETNS / name / "hosts").symlink_to(self._dns)
        ip("netns", "add", name)
        ip("-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("-n", self._switch, "link", "set", port, "master", "bridge", "up")
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "link", "set", "eth0", "address", card, "up")
        ip("-n", name, "address", "add", f"{address}/16", "dev", "eth0")
        return Host(name, number, address, self._switch, port)


class Host:
    """One host; what is started with its `enters` before the command runs in it."""

    def __init__(self, name, number, address, switch, port):
        self.name = name
        self.number = number
        self.address = address
        self.enters = (IP, "netns", "exec", name)
        self._switch = switch
        self._port = port

    def cut(self):
        """Let nothing through its cable."""
        ip("-n", self._switch, "link", "set", self._port, "down")

    def join(self):
        ip("-n", self._switch, "link", "set", self._port, "up")

    def remove(self):
        kill_within(self.name)
        ip("-n", self._switch, "link", "delete", self._port)  # with the namespace it would go in a while
        ip("netns", "delete", self.name)
        shutil.rmtree(NETNS / self.name, ignore_errors=True)
