"""Spends the budgets of tenants."""
