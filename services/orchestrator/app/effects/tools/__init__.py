"""Finds the tools of a run, authorizes the calls of these tools, and runs the calls."""
