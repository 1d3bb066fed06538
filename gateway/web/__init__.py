"""Shared parts of the HTTP servers, called doors: permitted callers, limits on size and time, and probes."""
