"""Carries out the commands of a run. Each type of command has one function, its effect."""
