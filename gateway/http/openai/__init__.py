"""Translates the requests of OpenAI's clients for the orchestrator, and its answers for them."""
