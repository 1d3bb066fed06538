"""Names concrete classes of the orchestrator that belong together."""
