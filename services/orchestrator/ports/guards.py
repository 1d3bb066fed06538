"""The plug-ins that guards run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pagantic_common.guards.plugin import Finding
from pagantic_common.guards.redaction import Window
from services.orchestrator.core.guards.rules import GuardRule


class GuardRunner(Protocol):
    """Runs plug-ins in isolation, so that hostile text cannot harm other work."""

    async def find(self, rule: GuardRule, windows: Sequence[Window]) -> list[tuple[Finding, ...]]:
        """Return the findings of the rule's plug-in in each text.

        Raises PaganticError if the plug-in fails or times out.
        """


@dataclass(frozen=True, slots=True)
class Guards:
    """The guards of the deployment, in order, and their runner."""

    rules: tuple[GuardRule, ...]
    runner: GuardRunner
