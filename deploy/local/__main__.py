"""`python -m deploy.local up|down|status|check|demo`: controls the system on a single machine."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from deploy.local.areas import ConfigurationError
from deploy.local.known_settings import check_names, check_values, use_file
from deploy.local.supervision import SupervisionError
from deploy.local.system import AreaStatus, LocalSystem, StartFailed
from pagantic_common.domain.defaults import PRIVATE_UMASK
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.settings import state_folder

EXIT_FAILED = 1
EXIT_CONFIGURATION = 3  # Every command of `pagantic` exits with this code if the configuration is invalid.
EXIT_INTERRUPTED = 130
# These commands must work even if the settings file is invalid.
_WITH_WRONG_FILE = ("down", "status")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m deploy.local", description="Run every service on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="start every service and wait until all are ready")
    commands.add_parser("down", help="stop every service")
    status = commands.add_parser("status", help="show the state of each service")
    status.add_argument("--json", action="store_true", help="print JSON")
    commands.add_parser("check", help="check the settings, and start nothing")
    demo = commands.add_parser("demo", help="start, answer six requests, and serve until Ctrl-C")
    demo.add_argument("--once", action="store_true", help="stop after the requests")
    return parser


def up(system: LocalSystem) -> int:
    """Start every service. This also succeeds if the services already run with the same settings."""
    _note_old_state()
    if system.start():
        return 0
    system.check_same_settings()
    unwell = [area.name for area in system.status() if not area.is_serving]
    if unwell:
        print(
            f"already up, but not ready: {' '.join(unwell)}; wait, or run `pagantic down`, then `pagantic up`",
            file=sys.stderr,
        )
        return 1
    print(f"already up on {system.areas[0].address}; state in {system.state}")
    return 0


def down(system: LocalSystem) -> int:
    """Stop every service. This also succeeds if no service is running."""
    if not system.stop():
        print(f"already down; state in {system.state}")
    return 0


def _note_old_state() -> None:
    old = Path(".pagantic")
    if "PAGANTIC_STATE" not in os.environ and old.is_dir():
        print(f"state is in {state_folder()} now; PAGANTIC_STATE=.pagantic uses the state of this folder")


def status(system: LocalSystem, *, as_json: bool) -> int:
    """Print a line for each service, and return 1 if any service is not ready."""
    areas = system.status()
    if as_json:
        print(json.dumps([asdict(area) for area in areas], indent=2))
    else:
        print(f"{'service':<14}{'state':<10}{'pid':>8}  {'address':<22}{'health':<13}uptime")
        for area in areas:
            print(_status_line(area))
        print(f"state and logs: {system.state}")
    if all(area.is_serving for area in areas):
        return 0
    return 1


def _status_line(area: AreaStatus) -> str:
    pid = str(area.pid or "-")
    uptime = "-"
    if area.uptime_s:
        uptime = f"{area.uptime_s:.0f} s"
    return f"{area.name:<14}{area.state:<10}{pid:>8}  {area.address:<22}{area.health:<13}{uptime}"


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def check() -> int:
    """Check the names and values of every setting. Raises ConfigurationError if a name or a value is invalid."""
    check_names(os.environ)
    check_values(os.environ, for_all=True)
    return 0


def _use_file(command: str) -> Path | None:
    """Set the variables of the settings file. Raises ConfigurationError, except in `down` and `status`."""
    try:
        return use_file()
    except ConfigurationError as error:
        if command not in _WITH_WRONG_FILE:
            raise
        print(f"{error}\nwarning: what could be read of the settings file is used", file=sys.stderr)
        return None


def _run(arguments: argparse.Namespace) -> int:
    settings_file = _use_file(arguments.command)
    if arguments.command == "check":
        return check()
    system = LocalSystem()
    if arguments.command == "up":
        if settings_file is not None:
            print(f"settings of {settings_file}", flush=True)
        return up(system)
    if arguments.command == "down":
        return down(system)
    if arguments.command == "status":
        return status(system, as_json=arguments.json)
    from deploy.local.demo import run_demo  # noqa: PLC0415 - the other commands need no client

    return run_demo(system, once=arguments.once)


def main() -> int:
    """Run a command and return its exit code."""
    arguments = _parser().parse_args()
    os.umask(PRIVATE_UMASK)
    # SIGTERM acts like Ctrl-C. A shell starts background jobs with SIGINT ignored, so its handler is set here.
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    try:
        return _run(arguments)
    except (ConfigurationError, InvalidRequest) as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIGURATION
    except (StartFailed, SupervisionError) as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    except BrokenPipeError:  # The reader has gone. Python would otherwise print another error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
