"""Anthropic's forms: what its clients send, as requests of the orchestrator, and its answers as they expect them."""
