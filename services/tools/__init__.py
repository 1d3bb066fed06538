"""The tools service: a process of its own."""
