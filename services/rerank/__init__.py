"""The rerank service: a process of its own."""
