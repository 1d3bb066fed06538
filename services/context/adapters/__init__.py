"""Adapters that connect the context service to its store and to the inference service."""
