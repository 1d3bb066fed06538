"""API keys, budgets and audit in the journal's database."""
