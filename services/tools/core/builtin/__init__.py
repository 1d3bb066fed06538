"""Computations and rules of the built-in tools."""
