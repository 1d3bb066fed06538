"""Screens over the main screen of the terminal program: questions, options and help."""
