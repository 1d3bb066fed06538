"""Text of any source: search terms, Unicode normal forms, JSON that was cut off, text for a terminal."""
