"""Adapters of the edge; they know only the contract of the orchestrator."""
