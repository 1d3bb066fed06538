"""Pure rules of the orchestrator: requests, plans, executions and responses."""
