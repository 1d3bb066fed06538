"""The built-in tools, a module for each family."""
