"""What every service and client shares: domain types, codecs, settings, telemetry, rpc plumbing, the Python client."""
