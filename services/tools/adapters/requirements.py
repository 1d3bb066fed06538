"""Finds which requirements of tools the machine of this service does not meet."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable

import psutil

from pagantic_common.domain.clock import Clock
from pagantic_common.tools.requirements import Requirement, RequirementKind

KEPT_S = 2.0  # Tools are listed for each conversation, and a search of PATH reads a folder for each of its parts.


class Machine:
    """The machine that runs the tools.

    A finding is kept for two seconds, so that a program is seen soon after its installation.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reasons: dict[Requirement, tuple[float, str]] = {}

    def lacks(self, requirements: Iterable[Requirement]) -> str:
        """Return the first missing requirement with its remedy, or an empty string if none is missing."""
        return next(filter(None, map(self._reason_of, requirements)), "")

    def _reason_of(self, requirement: Requirement) -> str:
        now_s = self._clock.monotonic_s()
        until_s, reason = self._reasons.get(requirement, (now_s, ""))
        if now_s >= until_s:
            reason = _look_for(requirement)
            self._reasons[requirement] = now_s + KEPT_S, reason
        return reason


def _look_for(requirement: Requirement) -> str:
    name = requirement.name
    match requirement.kind:
        case RequirementKind.NETWORK:
            if not _has_network():
                return (
                    "it requires the network, and no network interface is up: connect the machine of the tools service"
                )
        case RequirementKind.BINARY:
            if shutil.which(name) is None:
                return (
                    f"it requires the program {name!r}, which is not on the PATH of the tools service: install it there"
                )
        case RequirementKind.ENV:
            if not os.environ.get(name):
                return f"it requires the environment variable {name}: set it, and restart the tools service"
    return ""


def _has_network() -> bool:
    """Return whether an interface other than the loopback is up."""
    return any(stats.isup and "loopback" not in stats.flags for stats in psutil.net_if_stats().values())
