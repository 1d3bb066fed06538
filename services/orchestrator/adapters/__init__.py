"""gRPC clients of the other services, the journal in SQLite, and the folder of prompt templates."""
