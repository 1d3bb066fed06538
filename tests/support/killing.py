"""Kills the real processes of a supervised system, and waits until they are back."""

import contextlib
import os
import signal
import threading
import time

import psutil

from deploy.local.probing import probe_health
from deploy.local.supervision import Supervision

POLL_S = 0.01
BACK_S = 90.0  # on a machine with much else to do


def wait_until(is_so, what, within_s=BACK_S, poll_s=0.05):
    """Wait for something that comes in its own time; the bound is only there to fail."""
    end_s = time.monotonic() + within_s
    while not (found := is_so()):
        assert time.monotonic() < end_s, f"not within {within_s:g} s: {what}"
        time.sleep(poll_s)
    return found


def is_gone(pid):
    """Whether a process has ended; its parent may not have looked yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Processes:
    """The processes of a system that supervisord keeps."""

    def __init__(self, system):
        self.system = system
        self._supervision = Supervision(system.state)

    def pids(self):
        """Return the pid of each service; 0 of one that does not run."""
        return {name: one.pid for name, one in self._supervision.processes().items()}

    def kill(self, area):
        """SIGKILL a service, and return when it is gone."""
        pid = self._pid_of(area)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: is_gone(pid), f"{area} is gone", poll_s=POLL_S)

    def stop(self, area):
        """SIGSTOP a service: its connections stay, and nothing is answered."""
        os.kill(self._pid_of(area), signal.SIGSTOP)

    def _pid_of(self, area):
        pid = self.pids()[area]
        assert pid, f"{area} does not run"  # a signal to 0 would reach the tests themselves
        return pid

    def wait_until_whole(self):
        """Wait until supervisord has started again what was killed, and all serve."""
        areas = self.system.ports
        wait_until(lambda: all(probe_health(self.system.address(area)) == "SERVING" for area in areas), "all serve")

    @contextlib.contextmanager
    def holding(self):
        """Give a function that kills a service for as long as this lasts.

        Who supervisord starts in its place is stopped before it listens, and goes on afterwards.
        """
        ended, stopped, watchers = threading.Event(), [], []

        def stop_successor(area, killed):
            while not ended.is_set():
                pid = self.pids().get(area, 0)
                if pid and pid != killed:
                    os.kill(pid, signal.SIGSTOP)
                    stopped.append(pid)
                    return
                time.sleep(POLL_S)

        def kill(area):
            watcher = threading.Thread(target=stop_successor, args=(area, self.pids()[area]))
            watchers.append(watcher)
            self.kill(area)
            watcher.start()

        try:
            yield kill
        finally:
            ended.set()
            for watcher in watchers:
                watcher.join()
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
