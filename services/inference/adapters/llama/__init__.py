"""Implements the ports with llama.cpp: models, tokens, and the engines for texts, embeddings and pairs."""
