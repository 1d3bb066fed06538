"""Adapters of the rerank service."""
