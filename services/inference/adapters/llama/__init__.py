"""llama.cpp behind the ports: models, tokens, and the engines of texts, embeddings and pairs."""
