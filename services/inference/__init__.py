"""The inference service: a process of its own."""
