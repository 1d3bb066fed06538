"""The services, each a process of its own."""
