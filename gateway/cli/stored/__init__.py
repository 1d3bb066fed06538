"""Commands for what the orchestrator stores."""
