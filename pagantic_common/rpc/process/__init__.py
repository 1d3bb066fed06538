"""A service as a process: how it starts, serves, keeps its memory, and ends."""
