"""Common parts of the HTTP doors: permitted callers, limits on size and time, and responses to probes."""
