"""The orchestrator's use cases: running executions, ending their waits, and reading the journal."""
