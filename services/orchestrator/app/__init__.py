"""The use cases of the orchestrator."""
