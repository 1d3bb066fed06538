"""Executions with their owners, waits and signals, and conversations, in the journal's database."""
