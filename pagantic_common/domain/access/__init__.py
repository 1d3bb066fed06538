"""Who calls, and what each caller may do."""
