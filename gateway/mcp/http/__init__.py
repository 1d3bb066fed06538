"""Implements the streamable HTTP transport: checks callers, limits size and time, and tracks owners of sessions."""
