"""llama.cpp behind the ports: models, tokens, the engine of texts, and those of embeddings and pairs."""
