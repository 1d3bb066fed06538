"""Text as such: search terms, Unicode normal forms, JSON that was cut off, and what a terminal may be sent."""
