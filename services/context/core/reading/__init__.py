"""Turns the contents of files into documents: their text, their outline, and what they say about themselves."""
