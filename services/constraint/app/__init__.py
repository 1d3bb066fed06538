"""Use cases of the constraint service."""
