"""Turns the contents of files into documents: their text, their outline, and their properties."""
