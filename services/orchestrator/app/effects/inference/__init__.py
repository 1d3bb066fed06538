"""Asks the model: for one answer, or for the replicas of a vote."""
