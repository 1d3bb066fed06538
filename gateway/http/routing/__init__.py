"""The routing of requests: all paths, the dialects of clients, and the measurements."""
