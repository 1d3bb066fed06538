"""Pure rules of the tools service: the registry, argument checks and what the built-in tools compute."""
