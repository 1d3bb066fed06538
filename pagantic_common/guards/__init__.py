"""The findings of guards in a text, and the redaction of text while it streams."""
