"""Use cases of the rerank service."""
