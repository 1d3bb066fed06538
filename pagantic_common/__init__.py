"""Shared code of services and clients: domain types, codecs, settings, telemetry, rpc plumbing, the Python client."""
