"""The constraint service, which runs as a separate process."""
