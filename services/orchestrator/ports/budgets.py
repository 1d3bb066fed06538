"""Storage of budgets, shared by all orchestrators of a database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from services.orchestrator.core.budget import Amount, Budget
from services.orchestrator.ports.journal import Page


@dataclass(frozen=True, slots=True)
class Grant:
    """A tenant's budget after it was asked for a grant, and what was granted; None for too little."""

    budget: Budget
    granted: Amount | None


class BudgetStore(Protocol):
    """Budgets by tenant. Times are seconds since 1970."""

    async def set_budget(self, budget: Budget) -> Budget:
        """Set the limits of a tenant and return its budget; one without limits is deleted.

        What was granted stays, and `made_at` of the stored budget, unless its period is another.
        """

    async def find_budget(self, tenant: str, now_s: float) -> Budget | None:
        """Return a tenant's budget in the period of a moment; None for none."""

    async def list_budgets(self, *, limit: int, after: str, now_s: float) -> Page[Budget]:
        """Return budgets by tenant; `after` is the last page's token. Raises InvalidRequest for an invalid token."""

    async def grant(self, tenant: str, least: Amount, now_s: float) -> Grant | None:
        """Grant a part of a tenant's budget, `least` at least; None without a budget."""

    async def give_back(self, tenant: str, amount: Amount, budget: tuple[float, float]) -> None:
        """Return what was granted and is not needed; does nothing for another budget than that of this identity."""
