"""How a wait is told."""

import io

from deploy.local import system as module
from deploy.local.system import LINE_INTERVAL_S, Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Time:
    def __init__(self, monkeypatch):
        self.now_s = 0.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now_s)


def test_a_terminal_has_one_line_that_is_rewritten_and_cleared(monkeypatch):
    clock, stream = Time(monkeypatch), Terminal()
    with Progress(stream) as progress:
        for clock.now_s in (0.0, 0.05, 1.0, 7.0):
            progress.show("waiting: inference: loading model 491 MB")
    assert "\n" not in stream.getvalue()
    lines = stream.getvalue().split("\r\x1b[K")
    assert [line.strip().partition("  ")[0] for line in lines] == ["", "0 s", "1 s", "7 s", ""]


def test_elsewhere_lines_are_few(monkeypatch):
    clock, stream = Time(monkeypatch), io.StringIO()
    with Progress(stream) as progress:
        for second in range(100):
            clock.now_s = float(second)
            progress.show("waiting")
    assert stream.getvalue().splitlines() == [f"{2 + LINE_INTERVAL_S * n:3.0f} s  waiting" for n in range(4)]
