"""Use cases of the tools service."""
