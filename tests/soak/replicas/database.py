"""A PostgreSQL and its synchronous standby, each on a host of its own. The standby takes over from a lost primary."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager

import psycopg

from tests.support.postgres import Place, find_programs, postgres_server

PORT = 5432
NOTICED_S = 3.0  # until somebody promotes the standby
SERVERS = (2, 3)


@contextmanager
def replicated_database(network):
    """Give a database that runs, and is gone afterwards."""
    programs = find_programs()
    assert programs, "PostgreSQL is not installed: install Debian's package postgresql"
    hosts = [network.add_host("database", number) for number in SERVERS]
    with ExitStack() as stack:
        primary = stack.enter_context(postgres_server(programs, is_safe=True, place=_place_on(hosts[0])))
        primary.start()
        database = Database(network, stack, primary, hosts)
        database.add_standby()
        yield database


class Database:
    """Two servers: the primary on one host, its standby on the other."""

    def __init__(self, network, stack, primary, hosts):
        self._network = network
        self._stack = stack
        self._primary, self._standby = primary, None
        self._host, self._other = hosts
        servers = ",".join(f"{host.address}:{PORT}" for host in hosts)
        self.url = f"postgresql://pagantic@{servers}/postgres?target_session_attrs=read-write"

    def add_standby(self):
        """Start a standby on the other host, for which each commit waits from now on."""
        self._standby = self._stack.enter_context(self._primary.standby(_place_on(self._other)))
        with psycopg.connect(self._primary.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")

    def fail_over(self):
        """Lose the host of the primary without a word, and let the standby take over."""
        self._host.cut()
        self._host.remove()
        self._primary.is_running = False
        time.sleep(NOTICED_S)
        self._standby.promote()
        self._primary, self._standby = self._standby, None
        self._host, self._other = self._other, self._host

    def repair(self):
        """Let the host that was lost be the standby's."""
        self._other = self._network.add_host("database", self._other.number)
        self.add_standby()


def _place_on(host):
    return Place(host.address, PORT, host.enters)
