"""Adapters that connect the constraint service to files and to the inference service."""
