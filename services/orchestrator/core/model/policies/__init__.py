"""Policies of a request: of retries, and of a replay."""
