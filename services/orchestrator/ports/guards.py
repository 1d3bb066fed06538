"""The plug-ins of guards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pagantic_common.guards.plugin import Finding
from pagantic_common.guards.redaction import Window
from services.orchestrator.core.guards.rules import GuardRule


class GuardRunner(Protocol):
    """Runs plug-ins where a hostile text can hurt nobody else."""

    async def find(self, rule: GuardRule, windows: Sequence[Window]) -> list[tuple[Finding, ...]]:
        """Return what the rule's plug-in finds in each text; raises PaganticError for one that fails or is late."""


@dataclass(frozen=True, slots=True)
class Guards:
    """The guards of the deployment, in order, and what runs them."""

    rules: tuple[GuardRule, ...]
    runner: GuardRunner
