"""The conversation of `pagantic chat` on a terminal: line editing, history, Ctrl-C."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time

import pytest

from tests.e2e.conftest import ROOT

UP, LEFT = "\x1b[A", "\x1b[D"
LIMIT_S = 60.0
LONG = "Tell me a very long story about a lighthouse."  # some 25 s at temperature 0


class Terminal:
    """A command on a terminal of 80 columns."""

    def __init__(self, system, *command):
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a background job ignores it
            environment = {key: value for key, value in system.environment.items() if key != "COLUMNS"}
            os.execvpe(command[0], command, environment | {"TERM": "xterm"})  # noqa: S606 - no shell is wanted
        fcntl.ioctl(self.file, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
        self.seen = ""

    def type(self, text):
        os.write(self.file, text.encode())

    def wait_for(self, pattern):
        """Return what was shown until the pattern, which is looked for after what was found before."""
        until_s = time.monotonic() + LIMIT_S
        while time.monotonic() < until_s:
            if found := re.search(pattern, self.seen):
                shown, self.seen = self.seen[: found.end()], self.seen[found.end() :]
                return shown
            if select.select([self.file], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.file, 65536).decode(errors="replace")
                except OSError:  # the command has ended
                    break
        raise AssertionError(f"{pattern!r} was not shown: {self.seen!r}")

    def wait_for_quiet(self):
        """Wait until nothing is shown for a moment: the line editor waits for a key."""
        while select.select([self.file], [], [], 0.5)[0]:
            self.seen += os.read(self.file, 65536).decode(errors="replace")

    def end(self):
        """Return the exit code; what is shown meanwhile is read, for a command may wait for that."""
        until_s = time.monotonic() + LIMIT_S
        while time.monotonic() < until_s:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            with contextlib.suppress(OSError):
                if select.select([self.file], [], [], 0.05)[0]:
                    self.seen += os.read(self.file, 65536).decode(errors="replace")
        os.kill(self.pid, signal.SIGKILL)
        raise AssertionError("the command did not end")


@pytest.fixture
def chat(system):
    opened = []

    def start(*options):
        opened.append(Terminal(system, "pagantic", "chat", "--temperature", "0", *options))
        opened[-1].wait_for("> ")
        return opened[-1]

    yield start
    for terminal in opened:
        os.close(terminal.file)


def test_a_line_can_be_edited_and_comes_back_from_the_history_of_an_earlier_conversation(system, chat):
    first = chat("--session", "typed", "--max-tokens", "8")
    first.type(f"My name is An.{LEFT}a\n")
    first.wait_for("request [0-9a-f]+;")
    first.wait_for("> ")
    first.type("/exit\n")
    assert first.end() == 0
    assert "user: My name is Ana." in system.run("pagantic", "sessions", "show", "typed").stdout
    second = chat("--max-tokens", "8")
    second.type(UP + UP)
    second.wait_for("My name is Ana")
    second.wait_for_quiet()
    second.type("\x03")
    assert second.end() == 0
    assert (system.state / "chat_history").stat().st_mode & 0o777 == 0o600


def test_ctrl_c_stops_an_answer_and_what_was_said_stays(system, chat):
    terminal = chat("--session", "stopped")
    terminal.type(f"{LONG}\n")
    terminal.wait_for("lighthouse.\r\n")
    terminal.wait_for(r"(\w+\W+){5}")
    time.sleep(0.5)
    terminal.type("\x03")
    terminal.wait_for("stopped; the text so far stays in the conversation, marked as cut")
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.end() == 0
    kept = system.run("pagantic", "sessions", "show", "stopped").stdout
    assert f"user: {LONG}" in kept


def test_ctrl_c_ends_a_single_answer_and_says_where_it_is_kept(system):
    terminal = Terminal(system, "pagantic", "chat", LONG, "--temperature", "0", "--request-id", "cut-2")
    terminal.wait_for("request cut-2")
    terminal.wait_for(r"(\w+\W+){5}")
    terminal.type("\x03")
    terminal.wait_for("`pagantic show cut-2`")
    assert terminal.end() == 130
    os.close(terminal.file)
    assert system.run("pagantic", "show", "cut-2", check=False).returncode == 8
