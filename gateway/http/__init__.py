"""The native API and the APIs of OpenAI, Anthropic and Ollama over HTTP: translates requests and answers."""
