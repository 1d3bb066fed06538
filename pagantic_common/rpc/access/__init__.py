"""The caller of a method: its identity, permissions and correlation data."""
