"""The caller of a method: who it is, whether it may call, and what it tells of its request."""
