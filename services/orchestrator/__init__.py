"""The orchestrator service: a process of its own."""
