"""Calls to the inference service."""
