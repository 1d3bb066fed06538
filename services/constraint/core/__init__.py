"""Pure rules of the constraint service."""
