"""The orchestrator's use cases: running executions, deciding on approvals, and reading the journal."""
