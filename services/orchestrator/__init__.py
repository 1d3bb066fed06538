"""The orchestrator service, which runs as a separate process."""
