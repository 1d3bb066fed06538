"""Reads files that people write: YAML values, and requests in short forms."""
