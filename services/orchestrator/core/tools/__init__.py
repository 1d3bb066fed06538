"""Decides whether tool calls may run, by policies, by the origin of their arguments, and by approvals."""
