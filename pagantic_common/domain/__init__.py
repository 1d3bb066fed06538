"""Core types. The package uses only the standard library, without I/O, clocks or randomness."""
