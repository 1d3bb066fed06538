"""A service as a process: starting, serving, memory management, and stopping."""
