"""Serves the native API and the APIs of OpenAI, Anthropic and Ollama over HTTP by translating requests and answers."""
