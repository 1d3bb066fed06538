"""Code shared by services and clients: domain types, codecs, settings, telemetry, RPC and the Python client."""
