"""Translates the requests of Ollama's clients for the orchestrator, and its answers for them."""
