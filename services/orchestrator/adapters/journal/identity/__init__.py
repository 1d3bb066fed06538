"""Who calls, and what it may spend: keys and budgets in the journal's database."""
