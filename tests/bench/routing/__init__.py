"""Compares policies of routing over simulated and real replicas."""
