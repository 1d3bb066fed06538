"""Budgets and experiment variants of requests."""
