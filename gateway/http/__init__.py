"""The native API and those of OpenAI, Anthropic and Ollama over HTTP: translates requests and answers."""
