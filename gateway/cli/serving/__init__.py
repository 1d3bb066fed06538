"""Commands that start and supervise servers."""
