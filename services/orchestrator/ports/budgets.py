"""Storage of budgets, shared by all orchestrators of a database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from services.orchestrator.core.admission.budget import Amount, Budget
from services.orchestrator.core.model.keys import Account
from services.orchestrator.ports.page import Page


@dataclass(frozen=True, slots=True)
class Grant:
    """An account's budget after a request for a grant, and the granted amount; None if too little is left."""

    budget: Budget
    granted: Amount | None


class BudgetStore(Protocol):
    """Budgets by account. Times are seconds since 1970."""

    async def set_budget(self, budget: Budget) -> Budget:
        """Set the limits of an account and return its budget; a budget without limits is deleted.

        The granted amount and `made_at` of the stored budget are kept unless the period changes.
        """

    async def find_budget(self, account: Account, now_s: float) -> Budget | None:
        """Return an account's budget in the period of a moment; None without a budget."""

    async def has_subject_budgets(self, tenant: str) -> bool:
        """Return whether any subject of a tenant has a budget."""

    async def list_budgets(self, *, limit: int, after: str, now_s: float) -> Page[Budget]:
        """Return budgets by tenant and subject; `after` is the last page's token.

        Raises InvalidRequest for a wrong token.
        """

    async def grant(self, account: Account, least: Amount, now_s: float) -> Grant | None:
        """Grant a part of an account's budget, at least `least`; None without a budget."""

    async def give_back(self, account: Account, amount: Amount, budget: tuple[float, float]) -> None:
        """Give back an unused part of a grant; does nothing unless `budget` identifies the current budget."""
