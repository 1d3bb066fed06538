"""Stores API keys, budgets, usage totals and the audit log in the journal's database."""
