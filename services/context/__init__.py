"""The context service: a process of its own."""
