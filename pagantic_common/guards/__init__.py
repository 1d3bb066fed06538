"""What a guard finds in a text, and how a text is redacted while it streams."""
