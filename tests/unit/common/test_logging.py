"""The log as text: colours are for terminals alone."""

import io
import logging
import os
import pty

import pytest
import structlog

from pagantic_common.settings import LogFormat
from pagantic_common.telemetry.logging import get_logger, set_up_logging


@pytest.fixture(autouse=True)
def restored():
    """Restores what the set-up changes for the whole process."""
    root, configuration = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
    structlog.configure(**configuration)


def write(stream):
    set_up_logging("tools", level="INFO", log_format=LogFormat.TEXT, stream=stream)
    get_logger("test").warning("a call failed", tool="clock")
    get_logger("test").error("it raised", exc_info=ValueError("no such zone"))
    logging.getLogger("library").error("of the standard library")
    stream.flush()


def test_a_file_has_no_codes_of_a_terminal():
    stream = io.StringIO()
    write(stream)
    written = stream.getvalue()
    for text in ("a call failed", "tool=clock", "ValueError: no such zone", "of the standard library", "service=tools"):
        assert text in written
    assert "\x1b" not in written


@pytest.mark.parametrize(("no_color", "has_codes"), [("", True), ("1", False)])
def test_a_terminal_has_colours_unless_they_are_unwanted(monkeypatch, no_color, has_codes):
    monkeypatch.setenv("NO_COLOR", no_color)
    master, slave = pty.openpty()
    try:
        with os.fdopen(slave, "w", encoding="utf-8") as stream:
            write(stream)
            written = ""
            while "of the standard library" not in written:  # a read returns the part that has come
                written += os.read(master, 65536).decode()
    finally:
        os.close(master)
    assert "it raised" in written
    assert ("\x1b[" in written) is has_codes
