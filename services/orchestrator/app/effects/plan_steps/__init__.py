"""Runs the steps of a plan."""
