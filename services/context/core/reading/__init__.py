"""Turns the contents of files into documents with their text, outline and properties."""
