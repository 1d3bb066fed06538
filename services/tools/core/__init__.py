"""Pure rules of the tools service: argument checks, and the computations of the built-in tools."""
