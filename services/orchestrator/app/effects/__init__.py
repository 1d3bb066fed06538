"""The effects of a run: a function for each command."""
