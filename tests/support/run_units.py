"""The units of a run by several workers: a file each, but files that use the same started system are one unit.

Each worker that runs such a file starts a system of its own, which takes seconds of all processors.
"""

import re
import zlib
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).parents[2]
# Two workers share the files of the system, so that the last unit of a run is no longer than its other units.
UNITS_OF_SYSTEM = 2
FIXTURE_OF = (
    r"^(?:@pytest\.fixture.*\n(?:async )?def \w+|(?:async )?def test_\w+)\(.*\b(?:{0})\b|getfixturevalue\(\"(?:{0})\""
)
USES_KEYED = re.compile(FIXTURE_OF.format("keyed"), re.MULTILINE)
USES_MORTAL = re.compile(FIXTURE_OF.format("mortal|processes"), re.MULTILINE)
USES_SYSTEM = re.compile(FIXTURE_OF.format("system|channel"), re.MULTILINE)


def units_of_files():
    """Return the units of the files that share a system, by the path of the file."""
    texts = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in ROOT.glob("tests/e2e/test_*.py")}
    units = {path: "mortal" for path, text in texts.items() if USES_MORTAL.search(text)}
    units |= {path: "keyed" for path, text in texts.items() if USES_KEYED.search(text)}
    users = sorted(path for path, text in texts.items() if path not in units and USES_SYSTEM.search(text))
    return units | {path: f"system {number % UNITS_OF_SYSTEM}" for number, path in enumerate(users)}


def spread(items):
    """Order the tests of a run: first the files that share a system, last tests/unit, and all others mixed.

    Tests of one folder wait for the same things, and would leave the processors idle at the same time.
    """
    units = units_of_files()

    def place(item):
        path = item.path.relative_to(ROOT).as_posix()
        if path in units:
            return 0, 0, path
        return 1 + path.startswith("tests/unit/"), zlib.crc32(path.encode()), path

    items.sort(key=place)


class UnitScheduling(LoadFileScheduling):
    """Gives each worker a unit after another."""

    def __init__(self, config, log=None):
        super().__init__(config, log)
        self._units = units_of_files()

    def _split_scope(self, nodeid):
        path = super()._split_scope(nodeid)
        return self._units.get(path, path)
