"""Implements the ports: gRPC clients of other services, the journal in a SQL database, and the operator's files."""
