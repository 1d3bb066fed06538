"""The built-in tools, with a module for each family."""
