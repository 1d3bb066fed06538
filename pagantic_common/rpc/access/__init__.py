"""The caller of a method: the caller's identity, permissions and correlation data."""
