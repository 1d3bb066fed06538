"""Inference for one answer, or for the replicas of a vote."""
