"""Selects the concrete classes of the orchestrator and connects them."""
