"""Runs executions, each once, and lets callers join, follow, stop and resume them."""
