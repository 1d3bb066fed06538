"""`python -m deploy.local.child SERVICE`: becomes a service that ends when its supervisor does (on Linux).

The service `http` is the HTTP gateway, and is followed by the address of the orchestrator.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from pagantic_common.run import command
from pagantic_common.storage.settings_file import NO_FILE
from pagantic_common.storage.settings_file import VARIABLE as SETTINGS_FILE

OWNER_VARIABLE = "PAGANTIC_SUPERVISED_FROM"
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel to send SIGTERM when the parent ends, then become the service. This setting survives the exec."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if sys.argv[1] == "http":
        # As a command, the gateway would read the settings file, which may have changed. The supervisor has already
        # passed all of its settings.
        os.environ[SETTINGS_FILE] = NO_FILE
    program, *arguments = _program(*sys.argv[1:])
    options = owner_options(os.environ.get(OWNER_VARIABLE, ""))
    os.execv(program, [program, *options, *arguments])  # noqa: S606 - no shell is wanted


def owner_options(state: str) -> list[str]:
    """Return the Python options that mark a process as a service of a state folder.

    Other processes of the user can read these options in the command line, but cannot read a service's environment.
    """
    return ["-X", f"{OWNER_VARIABLE}={state}"]


def _program(name: str, orchestrator: str = "") -> list[str]:
    if name == "http":
        return command("gateway.cli.main", "serve", "--address", orchestrator)
    return command(f"services.{name}")


if __name__ == "__main__":
    main()
