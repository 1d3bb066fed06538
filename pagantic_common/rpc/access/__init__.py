"""The caller of a method: its identity, its permissions, and its correlation data."""
