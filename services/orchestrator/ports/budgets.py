"""Storage of budgets, shared by all orchestrators of a database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from services.orchestrator.core.admission.budget import Amount, Budget
from services.orchestrator.core.model.keys import Account
from services.orchestrator.ports.page import Page


@dataclass(frozen=True, slots=True)
class Grant:
    """An account's budget after it was asked for a grant, and what was granted; None for too little."""

    budget: Budget
    granted: Amount | None


class BudgetStore(Protocol):
    """Budgets by account. Times are seconds since 1970."""

    async def set_budget(self, budget: Budget) -> Budget:
        """Set the limits of an account and return its budget; one without limits is deleted.

        What was granted stays, and `made_at` of the stored budget, unless its period is another.
        """

    async def find_budget(self, account: Account, now_s: float) -> Budget | None:
        """Return an account's budget in the period of a moment; None for none."""

    async def has_subject_budgets(self, tenant: str) -> bool:
        """Tell whether any subject of a tenant has a budget."""

    async def list_budgets(self, *, limit: int, after: str, now_s: float) -> Page[Budget]:
        """Return budgets by tenant and subject; `after` is the last page's token.

        Raises InvalidRequest for a wrong token.
        """

    async def grant(self, account: Account, least: Amount, now_s: float) -> Grant | None:
        """Grant a part of an account's budget, `least` at least; None without a budget."""

    async def give_back(self, account: Account, amount: Amount, budget: tuple[float, float]) -> None:
        """Return what was granted and is not needed; does nothing for another budget than that of this identity."""
