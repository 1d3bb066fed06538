"""The client's methods for the data that the orchestrator stores."""
