"""Opens folders and files below a given folder, and never follows a link out of it.

A path is walked name by name from an open folder, and a symbolic link is refused at each name. A file that a link
replaces in the meantime is therefore also refused. The functions block, so call them in a thread.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a FIFO would block until its other end is opened.
READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


@contextmanager
def opened_folder(
    root: Path, names: Sequence[str], prepare: Callable[[str, int], None] = lambda _name, _parent: None
) -> Iterator[int]:
    """Open the folder at the path of `names` below a root. `prepare` is called with each name and its open parent.

    Raises OSError, with the errno ELOOP or ENOTDIR if a name is a link.
    """
    folder = os.open(root, FOLDER & ~os.O_NOFOLLOW)  # The operator's path may be a link.
    try:
        for name in names:
            prepare(name, folder)
            below = os.open(name, FOLDER, dir_fd=folder)
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


@contextmanager
def opened_file(name: str, flags: int, folder: int) -> Iterator[int]:
    """Open a file by its name in an open folder. Raises OSError if that fails."""
    file = os.open(name, flags, 0o666, dir_fd=folder)
    try:
        yield file
    finally:
        os.close(file)


def is_regular(file: int) -> bool:
    """Return whether an open file is neither a folder nor a special file."""
    return stat.S_ISREG(os.fstat(file).st_mode)
