"""The context service, which runs as a separate process."""
