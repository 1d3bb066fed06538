"""The findings of guards in a text, and the redaction of a text while it streams."""
