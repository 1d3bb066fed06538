"""Use cases of the context service."""
