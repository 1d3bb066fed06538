"""The descriptions of the paths, a table of operations for each API."""
