"""A PgBouncer of the tests' own before a PostgreSQL."""

import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.ports import free_ports
from tests.support.postgres import _user, as_user


def find_pgbouncer():
    """Return the program, or None."""
    return shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin:/usr/local/sbin")


@contextmanager
def running_pgbouncer(program, url, mode):
    """Start it before the server of this URL in a mode, and give the URL through it."""
    user, (port,) = _user(), free_ports(1)
    folder = Path(tempfile.mkdtemp(prefix="pagantic-pgbouncer-"))
    server = urlsplit(url)
    (folder / "users").write_text('"pagantic" ""\n')
    (folder / "settings").write_text(
        f"[databases]\n* = host=127.0.0.1 port={server.port}\n[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port={port}\n"
        f"unix_socket_dir=\nauth_type=trust\nauth_file={folder / 'users'}\npool_mode={mode}\ndefault_pool_size=40\n"
    )
    if user:
        for path in (folder, *folder.iterdir()):
            shutil.chown(path, user)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*as_user(user), program, str(folder / "settings")], stdout=log, stderr=log)
    try:
        _wait_for(port)
        yield f"postgresql://pagantic@127.0.0.1:{port}{server.path}"
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


def _wait_for(port):
    for _ in range(200):
        with closing(socket.socket()) as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("pgbouncer does not listen")
