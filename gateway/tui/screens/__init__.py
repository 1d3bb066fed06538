"""Screens over the terminal program's own: questions, options and help."""
