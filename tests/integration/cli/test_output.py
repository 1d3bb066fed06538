"""What becomes of output that cannot be written, or that nobody reads to its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PAGANTIC = Path(sys.executable).parent / "pagantic"


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
