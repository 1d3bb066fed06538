"""A PostgreSQL of the tests' own, from the programs that are installed here."""

import os
import pwd
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.ports import free_ports

# PostgreSQL refuses to run as root; Debian's package makes the first of these.
USERS = ("postgres", "nobody")
NEIGHBOURS = "host all all samenet trust\nhost replication all samenet trust\n"


class Place(NamedTuple):
    """Where a server runs: its address, its port (0 is a free one), and how a command begins that is run there."""

    address: str = "127.0.0.1"
    port: int = 0
    enters: tuple[str, ...] = ()


HERE = Place()


def find_programs():
    """Return the folder of initdb and pg_ctl, or None."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "pg_ctl").exists() and (folder / "initdb").exists()), None)


def _user():
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next((user for user in USERS if user in names), None)


def as_user(user):
    """Return the beginning of a command that runs as a user; None is whoever runs the tests.

    subprocess would fork for its `user`, which may crash beside the threads of gRPC.
    """
    if user is None:
        return []
    return ["setpriv", f"--reuid={user}", "--clear-groups"]


@contextmanager
def running_postgres(programs, *, is_safe=False):
    """Start a server and give the URL of its database, which is gone afterwards.

    If `is_safe`, a commit waits for the disk, as it does in use.
    """
    with postgres_server(programs, is_safe=is_safe) as server:
        server.start()
        yield server.url


class PostgresServer:
    """A server that can be started and stopped again and again."""

    def __init__(self, run, programs, data, place, settings):
        self._run, self._programs, self._data, self._settings = run, programs, data, settings
        self._place = place._replace(port=place.port or free_ports(1)[0])
        self.host = f"{self._place.address}:{self._place.port}"
        self.url = f"postgresql://pagantic@{self.host}/postgres"
        self.is_running = False

    def start(self):
        options = f"-c listen_addresses={self._place.address} -c port={self._place.port} {self._settings}"
        self._control("-l", self._data.with_suffix(".log"), "-w", "-o", options, "start")
        self.is_running = True

    def stop(self, mode="immediate"):
        if self.is_running:
            self._control("-m", mode, "-w", "stop")
        self.is_running = False

    @contextmanager
    def standby(self, place=HERE):
        """Start a standby that streams from this server, which then waits for it with each commit."""
        folder = Path(tempfile.mkdtemp(prefix="standby-", dir=self._data.parent)) / "data"
        shutil.chown(folder.parent, self._data.owner())
        standby = PostgresServer(self._run, self._programs, folder, place, self._settings)
        source = f"{self.url}?application_name=standby"
        backup = ("-D", folder, "-d", source, "-R", "-X", "stream", "-c", "fast")
        self._run(place, self._programs / "pg_basebackup", *backup)
        standby.start()
        try:
            yield standby
        finally:
            standby.stop()

    def promote(self):
        self._control("-w", "promote")

    def _control(self, *words):
        self._run(self._place, self._programs / "pg_ctl", "-D", self._data, *words)


@contextmanager
def postgres_server(programs, *, is_safe=False, place=HERE):
    """Give a server that is not started yet, and is gone afterwards."""
    user = _user()
    folder = Path(tempfile.mkdtemp(prefix="pagantic-postgres-"))
    if user:
        shutil.chown(folder, user)
    data = folder / "data"

    def run(where, *command):
        done = subprocess.run(
            [*where.enters, *as_user(user), *(str(part) for part in command)],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{command[0]} gave {done.returncode}\n{done.stdout}\n{done.stderr}"

    run(HERE, programs / "initdb", "-D", data, "-U", "pagantic", "--auth=trust", "--no-sync", "-E", "UTF8")
    if place.enters:
        with (data / "pg_hba.conf").open("a") as rules:
            rules.write(NEIGHBOURS)
    settings = "-c unix_socket_directories="
    if not is_safe:
        settings += " -c fsync=off"
    server = PostgresServer(run, programs, data, place, settings)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)
