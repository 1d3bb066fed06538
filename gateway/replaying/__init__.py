"""Replays of recorded executions: the user's changes, and the resulting differences."""
