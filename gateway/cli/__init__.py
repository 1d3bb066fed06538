"""The `pagantic` command."""
