"""Replays of recorded executions: their steps, and the results that a replay reuses from the record."""
