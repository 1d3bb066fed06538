"""Implements the ports with llama.cpp: loads models, tokenizes, generates text, computes embeddings, scores pairs."""
