"""Adapters of the constraint service for files and the inference service."""
