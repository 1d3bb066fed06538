"""Translates the requests of Anthropic's clients for the orchestrator, and its answers for them."""
