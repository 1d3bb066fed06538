"""The effects of a run, which are functions for each type of command."""
