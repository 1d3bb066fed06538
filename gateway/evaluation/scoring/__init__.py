"""Scores of answers: what a case expects is held against what came. Judge and embeddings are reached by a port."""
