"""Recorded executions that run again: which steps they have, and what a replay takes from their record."""
