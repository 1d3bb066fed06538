"""Replays of recorded executions: people's changes, and the resulting differences."""
