"""Budgets and experiment variants that apply to requests."""
