"""Calls of the inference service."""
