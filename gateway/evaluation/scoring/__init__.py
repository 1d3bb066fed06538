"""Scores of answers: compares answers with a case's expectations. A port gives access to judge and embeddings."""
