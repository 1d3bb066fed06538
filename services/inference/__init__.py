"""The inference service, which runs as a separate process."""
