"""Use-cases of the orchestrator."""
