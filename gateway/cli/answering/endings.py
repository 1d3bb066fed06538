"""Signals that end a program, as an exception: what it has begun is stopped on the way out."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
EXIT_OF_SIGNAL: Final = 128


@contextmanager
def unwinding() -> Generator[None, None, None]:
    """Have SIGTERM and SIGHUP raise SystemExit inside, as Ctrl-C raises KeyboardInterrupt.

    A signal that is ignored, as SIGHUP is under nohup, stays ignored. Only the main thread takes signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _leave)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(EXIT_OF_SIGNAL + number)
