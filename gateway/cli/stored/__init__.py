"""Commands for the data that the orchestrator stores."""
