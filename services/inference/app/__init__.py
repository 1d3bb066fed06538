"""Use cases of the inference service."""
