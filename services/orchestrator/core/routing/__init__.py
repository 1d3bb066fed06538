"""Chooses the replica of the inference service that is expected to return the first token soonest."""
