"""Translates the requests of OpenAI clients into requests to the orchestrator, and translates its responses back."""
