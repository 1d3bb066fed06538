"""gRPC clients of the other services, and the journal in SQLite."""
