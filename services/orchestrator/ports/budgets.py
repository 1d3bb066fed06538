"""Storage of budgets, which all orchestrators of a database share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from services.orchestrator.core.admission.budget import Amount, Budget
from services.orchestrator.core.model.keys import Account
from services.orchestrator.ports.page import Page


@dataclass(frozen=True, slots=True)
class Grant:
    """An account's budget after a request for a grant, and the granted amount.

    `granted` is None if too little is left.
    """

    budget: Budget
    granted: Amount | None


class BudgetStore(Protocol):
    """Stores budgets by account. Times are in seconds since 1970."""

    async def set_budget(self, budget: Budget) -> Budget:
        """Set the limits of an account and return its budget. A budget without limits is deleted.

        The granted amount and `made_at` of the stored budget are kept unless the period changes.
        """

    async def find_budget(self, account: Account, now_s: float) -> Budget | None:
        """Return an account's budget in the period that contains `now_s`, or None if the account has no budget."""

    async def has_subject_budgets(self, tenant: str) -> bool:
        """Return whether any subject of a tenant has a budget."""

    async def list_budgets(self, *, limit: int, after: str, now_s: float) -> Page[Budget]:
        """Return budgets in order of tenant and subject. `after` is the token from the previous page.

        Raises InvalidRequest if the token is invalid.
        """

    async def grant(self, account: Account, least: Amount, now_s: float) -> Grant | None:
        """Grant at least `least` from an account's budget, or return None if the account has no budget."""

    async def give_back(self, account: Account, amount: Amount, budget: tuple[float, float]) -> None:
        """Return an unused part of a grant to the budget.

        Does nothing unless `budget` identifies the current budget.
        """
