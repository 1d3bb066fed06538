"""Chooses the replica of the inference service that gives the first token soonest."""
