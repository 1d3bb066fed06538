"""A service as a process: how it starts, serves, manages its memory, and ends."""
