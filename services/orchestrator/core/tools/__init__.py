"""Policies, taint and approvals for tool calls and their arguments."""
