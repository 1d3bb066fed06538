"""Translates the requests of Anthropic clients into requests to the orchestrator, and translates its responses back."""
