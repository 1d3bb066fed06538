"""Executions with their owners and approvals, and conversations, in the journal's database."""
