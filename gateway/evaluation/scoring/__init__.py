"""Scores answers by comparing them with a case's expectations. A port provides the judge and the embeddings."""
