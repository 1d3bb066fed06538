"""Completion of command lines by the shell."""
