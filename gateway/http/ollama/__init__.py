"""Translates the requests of Ollama clients into requests to the orchestrator, and translates its responses back."""
