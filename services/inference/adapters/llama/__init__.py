"""Implements the ports with llama.cpp: loads models, tokenizes, generates text, makes embeddings and scores pairs."""
