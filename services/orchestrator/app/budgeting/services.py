"""Wraps the services so that their use is charged to the tenants' budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from services.orchestrator.app.budgeting.budgets import Budgets
from services.orchestrator.app.budgeting.constraint import BudgetedConstraint
from services.orchestrator.app.budgeting.inference import BudgetedInference
from services.orchestrator.app.services import Services
from services.orchestrator.core.cost import Prices


def within_budgets(services: Services, budgets: Budgets, prices: Mapping[str, Prices]) -> Services:
    """Return services that charge their use to the budgets of the tenants that use them."""
    return replace(
        services,
        inference=BudgetedInference(services.inference, budgets, prices),
        constraint=BudgetedConstraint(services.constraint, budgets, prices),
    )
