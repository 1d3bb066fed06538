"""The tools service, which runs as a separate process."""
