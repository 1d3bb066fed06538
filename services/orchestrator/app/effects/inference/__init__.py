"""Runs the inference of one answer, or of the replicas of a vote."""
