"""Serves vLLM's gRPC protocol, so that gateways written for vLLM can use this service's engine."""
