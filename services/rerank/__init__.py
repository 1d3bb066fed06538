"""The rerank service, which runs as a separate process."""
