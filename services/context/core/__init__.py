"""Pure rules of the context service."""
