"""What becomes of output that cannot be written, or that nobody reads to its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PAGANTIC = Path(sys.executable).parent / "pagantic"
# The program with a line of arguments, which gets SIGINT when it imports the module that stands before them.
INTERRUPTED = """
import os, signal, sys
from gateway import entry

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
_, module, *line = sys.argv
sys.argv[1:] = line
sys.meta_path.insert(0, Interrupting())
entry.main()
"""


def test_a_full_disk_behind_stdout_is_told():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [PAGANTIC, "models", "--catalog"], stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    assert (done.returncode, done.stderr) == (1, "FAILED: no space left on device\n")


def test_a_reader_that_leaves_is_no_fault():
    read, write = os.pipe()
    os.close(read)  # nobody reads from the first byte on
    try:
        done = subprocess.run(
            [PAGANTIC, "models", "--catalog", "--json"],
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("module", "word"), [("gateway.cli.main", "--version"), ("gateway.cli.stored.sessions", "sessions")]
)
def test_ctrl_c_while_the_commands_are_loaded_ends_without_a_traceback(module, word):
    command = [sys.executable, "-c", INTERRUPTED, module, word]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped\n")
