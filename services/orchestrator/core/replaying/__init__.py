"""Replays of recorded executions: their steps, and the results that a replay takes from the record."""
