"""Core types. The package uses only the standard library, and has no I/O, no clock and no randomness."""
