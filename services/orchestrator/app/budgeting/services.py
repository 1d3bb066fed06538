"""The services that spend budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from services.orchestrator.app.budgeting.budgets import Budgets
from services.orchestrator.app.budgeting.constraint import BudgetedConstraint
from services.orchestrator.app.budgeting.inference import BudgetedInference
from services.orchestrator.app.services import Services
from services.orchestrator.core.cost import Prices


def within_budgets(services: Services, budgets: Budgets, prices: Mapping[str, Prices]) -> Services:
    """Return services that spend the budgets of the tenants that they work for."""
    return replace(
        services,
        inference=BudgetedInference(services.inference, budgets, prices),
        constraint=BudgetedConstraint(services.constraint, budgets, prices),
    )
