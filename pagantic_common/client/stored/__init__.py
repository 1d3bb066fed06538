"""The client's methods for what the orchestrator stores."""
