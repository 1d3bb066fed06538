"""Runs each execution once, and lets callers join, follow, stop and resume executions."""
