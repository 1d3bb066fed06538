"""A PostgreSQL of the tests' own, from the programs that are installed here."""

import os
import pwd
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

from tests.support.ports import free_ports

# PostgreSQL refuses to run as root; Debian's package makes the first of these.
USERS = ("postgres", "nobody")


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

    def __init__(self, run, programs, data, options, url):
        self._run, self._programs, self._data, self._options = run, programs, data, options
        self.url = url
        self.is_running = False

    def start(self):
        log = self._data.parent / "log"
        self._run(self._programs / "pg_ctl", "-D", self._data, "-l", log, "-w", "-o", self._options, "start")
        self.is_running = True

    def stop(self, mode="immediate"):
        if self.is_running:
            self._run(self._programs / "pg_ctl", "-D", self._data, "-m", mode, "-w", "stop")
        self.is_running = False

    @contextmanager
    def standby(self):
        """Start a standby that streams from this server, which then waits for it with each commit."""
        folder, (port,) = self._data.parent / "standby", free_ports(1)
        source = f"{self.url} application_name=standby".replace(" ", "?")
        self._run(self._programs / "pg_basebackup", "-D", folder, "-d", source, "-R", "-X", "stream", "-c", "fast")
        options = self._options.replace(f"port={self.url.rsplit(':', 1)[1].split('/')[0]}", f"port={port}")
        url = f"postgresql://pagantic@127.0.0.1:{port}/postgres"
        standby = PostgresServer(self._run, self._programs, folder, options, url)
        standby.start()
        try:
            yield standby
        finally:
            standby.stop()

    def promote(self):
        self._run(self._programs / "pg_ctl", "-D", self._data, "-w", "promote")


@contextmanager
def postgres_server(programs, *, is_safe=False):
    """Give a server that is not started yet, and is gone afterwards."""
    user = _user()
    folder = Path(tempfile.mkdtemp(prefix="pagantic-postgres-"))
    if user:
        shutil.chown(folder, user)
    data, (port,) = folder / "data", free_ports(1)

    def run(*command):
        done = subprocess.run(
            [*as_user(user), *(str(part) for part in command)],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{command[0]} gave {done.returncode}\n{done.stdout}\n{done.stderr}"

    run(programs / "initdb", "-D", data, "-U", "pagantic", "--auth=trust", "--no-sync", "-E", "UTF8")
    options = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories="
    if not is_safe:
        options += " -c fsync=off"
    server = PostgresServer(run, programs, data, options, f"postgresql://pagantic@127.0.0.1:{port}/postgres")
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)
