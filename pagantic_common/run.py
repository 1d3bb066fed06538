"""Runs a module of pagantic as a program, by its name in a checkout: `python -m pagantic_common.run NAME`.

`services`, `gateway` and `deploy` are folders of a checkout. The wheel puts them inside the package `pagantic`, because
a user's own package may have one of these names. The module `services.tools` of a checkout is therefore
`pagantic.services.tools` in an installed wheel.

A program that is started here finds this code in the same place as its parent. It does not import modules from the
current folder, which may contain any file.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

_FILE = Path(__file__).absolute()  # Not resolved, because installers may link files from a cache.
_FOLDER = _FILE.parents[1]
_IS_INSTALLED = (_FOLDER / "pagantic" / "services").is_dir()
_MOVED = ("deploy", "gateway", "services")


def locate(name: str) -> str:
    """Return the importable name of a module in this installation, given its name in a checkout."""
    if _IS_INSTALLED and name.partition(".")[0] in _MOVED:
        return f"pagantic.{name}"
    return name


def command(name: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module in a separate process. The module may belong to another package."""
    return [sys.executable, "-P", str(_FILE), name, *arguments]


def pagantic() -> None:
    """Run the installed program `pagantic`."""
    import_module(locate("gateway.entry")).main()


def main() -> None:
    """Run the module that the command line names, with the remaining arguments."""
    import runpy  # noqa: PLC0415 - the program `pagantic` starts without it

    if not sys.flags.safe_path:
        del sys.path[0]  # The current folder, or the folder of this file.
    folders = [str(_FOLDER)]
    if not _IS_INSTALLED:
        folders.append(str(_FOLDER / "proto" / "gen"))
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
    del sys.argv[0]
    if not sys.argv:
        sys.exit("usage: python -m pagantic_common.run MODULE [ARGUMENT...]")
    runpy.run_module(locate(sys.argv[0]), run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
