"""Adapters of the context service for its store and the inference service."""
