"""Charges work to the budgets of tenants."""
