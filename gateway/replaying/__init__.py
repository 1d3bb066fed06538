"""Prepares replays of recorded executions with the user's changes, and computes the resulting differences."""
