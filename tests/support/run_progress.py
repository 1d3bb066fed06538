"""Progress of a test run: a line every few seconds, the time by phase and file at the end, and an end to hangs.

Works in the process that the user started; with pytest-xdist the workers report to it.
"""

import json
import os
import sys
import threading
import time
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

LINE_EVERY_S = 10.0
# Each test has a timeout of its own. This is for code that no signal interrupts, such as a lock held in C.
HANGS_AFTER_S = 900.0
SLOWEST_FILES = 12


def add_options(parser):
    group = parser.getgroup("pagantic")
    group.addoption("--progress", action="store_true", help="print a line of progress instead of dots")
    group.addoption("--failures", metavar="FILE", help="write the failed tests and their reports to FILE, as JSON")


class RunProgress:
    """Counts the tests that ended and the seconds they took; times of several workers add up."""

    def __init__(self, config):
        self._prints = config.getoption("--progress")
        self._failures_file = config.getoption("--failures")
        self._started_s = self._heard_s = time.monotonic()
        self._total = self._done = 0
        self._running = set()
        self._failures = {}
        self._phases, self._files = Counter(), Counter()
        self._ended = threading.Event()

    # The hooks of pytest and pytest-xdist.

    def pytest_sessionstart(self, session):
        self._writer = session.config.pluginmanager.getplugin("terminalreporter")
        threading.Thread(target=self._watch, name="test-progress", daemon=True).start()

    def pytest_collection_finish(self, session):
        self._total = self._total or len(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids):
        self._total = len(ids)

    def pytest_runtest_logstart(self, nodeid):
        self._running.add(nodeid)

    def pytest_runtest_logreport(self, report):
        self._heard_s = time.monotonic()
        self._phases[report.when] += report.duration
        self._files[report.nodeid.partition("::")[0]] += report.duration
        if report.failed:
            self._failures.setdefault(report.nodeid, report.longreprtext)
        if report.when == "teardown":
            self._done += 1
            self._running.discard(report.nodeid)

    def pytest_report_teststatus(self, report):
        if self._prints and report.passed:
            return ("passed" if report.when == "call" else ""), "", "PASSED"
        if self._prints and report.skipped:
            return "skipped", "", "SKIPPED"
        return None

    def pytest_sessionfinish(self, exitstatus):
        self._ended.set()
        if self._failures_file and exitstatus == 1:
            Path(self._failures_file).write_text(json.dumps(self._failures), encoding="utf-8")

    def pytest_terminal_summary(self):
        if not self._prints:
            return
        phases = ", ".join(f"{phase} {self._phases[phase]:.0f} s" for phase in ("setup", "call", "teardown"))
        self._writer.write_line(f"time in tests, all workers together: {phases}; the slowest files:")
        for name, seconds in self._files.most_common(SLOWEST_FILES):
            self._writer.write_line(f"  {seconds:6.1f} s {name}")

    # The thread that writes progress.

    def _watch(self):
        while not self._ended.wait(LINE_EVERY_S):
            if time.monotonic() - self._heard_s > HANGS_AFTER_S:
                running = "\n  ".join(sorted(self._running))
                sys.stderr.write(f"\nno test has ended for {HANGS_AFTER_S:.0f} s; still running:\n  {running}\n")
                sys.stderr.flush()
                os._exit(1)
            if self._prints and self._total:
                self._write_line()

    def _write_line(self):
        minutes, seconds = divmod(int(time.monotonic() - self._started_s), 60)
        slowest = next(chain(self._files.copy().most_common(1)), ("", 0.0))
        self._writer.write_line(
            f"tests: {minutes}:{seconds:02} · {self._done} done, {self._total - self._done} left, "
            f"{len(self._failures)} failed · slowest file {slowest[0]} {slowest[1]:.0f} s"
        )
