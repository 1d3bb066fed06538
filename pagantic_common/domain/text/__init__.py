"""Text from any source: search terms, Unicode normal forms, truncated JSON, and text for a terminal."""
