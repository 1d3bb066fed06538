"""OpenAI's API and the native one over HTTP: translates requests for the orchestrator, and what it answers."""
