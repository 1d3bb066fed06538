"""Pure rules of the orchestrator: the lifecycle, what a request needs, what comes of it."""
