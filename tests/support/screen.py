"""A program on a terminal of its own, and what a person sees there."""

import asyncio
import codecs
import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pyte

from tests.support.watching import LIMIT_S, Watching

PAGANTIC = str(Path(sys.executable).with_name("pagantic"))
# Gives the program the terminal, as a shell does, and the signals of one that was not started in the background.
_LAUNCH = (
    "import fcntl, os, signal, sys, termios\n"
    "os.setsid()\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
    "os.execvp(sys.argv[1], sys.argv[1:])\n"
)
# What pyte 0.8.2 would write as text: sequences with > or <, which set modes of keyboards.
_PRIVATE = re.compile(r"\x1b\[[<>=][0-9;]*[a-z]")


class Screen(Watching):
    """A program on a terminal; `sent` is everything that it wrote, and pyte draws what is seen of that."""

    def __init__(self, command, environment, *, columns=80, rows=24):
        self.master, self.slave = pty.openpty()
        self.before = termios.tcgetattr(self.slave)
        self.seen = pyte.Screen(columns, rows)
        self._stream = pyte.Stream(self.seen)
        self._set_size(columns, rows)
        self.sent = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        os.set_blocking(self.master, False)
        environment = {key: value for key, value in environment.items() if key not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, *command],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            env=environment,
        )

    def _set_size(self, columns, rows):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    @property
    def lines(self):
        """The lines that are seen, without spaces at their ends."""
        return [line.rstrip() for line in self.seen.display]

    @property
    def text(self):
        return "\n".join(self.lines)

    def resize(self, columns, rows):
        self._set_size(columns, rows)
        self.seen.resize(rows, columns)

    async def type(self, text):
        """Type a text, or keys as terminals send them."""
        left = text.encode()
        until_s = time.monotonic() + LIMIT_S
        while left:
            assert time.monotonic() < until_s, "the program reads no keys"
            with contextlib.suppress(BlockingIOError):
                left = left[os.write(self.master, left) :]
            await self._read()

    async def paste(self, text):
        """Paste a text, as terminals do for a program that asked for brackets around it: without ESC."""
        await self.type("\x1b[200~" + text.replace("\x1b", "") + "\x1b[201~")

    async def look(self):
        is_running = self.process.poll() is None
        await self._read()
        return is_running

    @property
    def told(self):
        return f"{self.text}\n{self.sent[-2000:]!r}"

    async def end(self):
        """Return the exit code of the program, which ends by itself."""
        until_s = time.monotonic() + LIMIT_S
        while self.process.poll() is None:
            assert time.monotonic() < until_s, f"the program did not end:\n{self.text}"
            await self._read()
        await self._read()
        return self.process.returncode

    def is_restored(self):
        """Tell whether the terminal is as it was: its modes, its screen, its cursor, its mouse and its pastes."""
        modes = termios.tcgetattr(self.slave)
        for sign in ("1049", "1000", "1003", "2004"):
            if self.sent.rfind(f"\x1b[?{sign}h") > self.sent.rfind(f"\x1b[?{sign}l"):
                return False
        return modes == self.before and self.sent.rfind("\x1b[?25h") > self.sent.rfind("\x1b[?25l")

    async def _read(self):
        await asyncio.sleep(0.02)
        with contextlib.suppress(BlockingIOError, OSError):
            while data := os.read(self.master, 65536):
                self._take(data)

    def _take(self, data):
        text = self._decoder.decode(data)
        self.sent += text
        self._stream.feed(_PRIVATE.sub("", text))

    def close(self):
        """End the program, if it has not ended, and give the terminal back."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)
