"""Finds the tools of a run, clears their calls, and runs them."""
