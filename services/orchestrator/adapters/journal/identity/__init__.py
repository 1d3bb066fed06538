"""API keys, budgets and the audit log in the journal's database."""
