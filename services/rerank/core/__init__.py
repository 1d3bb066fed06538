"""Pure rules of the rerank service."""
