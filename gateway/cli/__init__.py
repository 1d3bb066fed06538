"""Implements the `pagantic` command."""
