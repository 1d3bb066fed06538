"""Adapters at the edge of the system; they depend only on the orchestrator's contract."""
