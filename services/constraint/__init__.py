"""The constraint service: a process of its own."""
