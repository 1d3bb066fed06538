"""The streamable HTTP transport: permitted callers, limits on size and time, and the owners of sessions."""
