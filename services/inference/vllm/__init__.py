"""Serves vLLM's gRPC protocol, so that gateways for vLLM can use this service's engine."""
