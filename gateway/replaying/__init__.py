"""Replays of recorded executions: what people change, and what differs afterwards."""
